/**
 * src/backends/redis/lua/*.lua → src/backends/redis/lua.ts, and the same for SQL: one exported string per file, so that
 * bundling works and nothing is read from disk at run time.
 *
 * A file whose name begins with `_` is a part: it gets no export of its own, and stands where a script (or another part)
 * says `-- @include _name`, the first time only. A file with lines `-- @statement name` is an object of statements.
 * Full-line comments and blank lines stay behind: servers keep script texts in memory, and clients send them over the wire.
 */
import { mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { basename, dirname, join, relative } from 'node:path'
import { isMain, root } from './lib/paths.mjs'

const INCLUDE = /^\s*--\s*@include\s+(\S+)\s*$/
const BLOCK_COMMENT = /^\s*--\[=*\[/
const COMMENT_OR_BLANK = /^\s*(--.*)?$/

const STATEMENT = /^\s*--\s*@statement\s+(\w+)\s*$/

/** Each is named after what is in it. */
const FOLDERS = ['src/backends/redis/lua', 'src/backends/sql/sqlite/sql', 'src/backends/sql/postgres/sql', 'src/backends/sql/mysql/sql']

export function embed() {
  for (const folder of FOLDERS) embedFolder(join(root, folder))
}

/** What is in the folder goes into a file beside it. */
export function embedFolder(folder) {
  const target = `${folder}.ts`
  const scripts = sourceFiles(folder).filter((name) => !name.startsWith('_'))
  const exports = scripts.map((name) => `export const ${identifier(name)} = ${literal(expand(folder, name))}\n`)
  const header = `// Written by scripts/embed.mjs from ${relative(root, folder)}/*.${basename(folder)}. Edit those.\n`
  const text = header + (exports.length > 0 ? exports.join('') : 'export {}\n')
  if (read(target) === text) return
  mkdirSync(dirname(target), { recursive: true })
  // By rename, so that a compiler running beside this never reads half a file.
  writeFileSync(`${target}.${process.pid}`, text)
  renameSync(`${target}.${process.pid}`, target)
}

function sourceFiles(folder) {
  try {
    return readdirSync(folder).filter((name) => name.endsWith(`.${basename(folder)}`)).sort()
  } catch (error) {
    if (error.code === 'ENOENT') return []
    throw error
  }
}

/** The text of a script with its parts in place. */
function expand(folder, name, seen = new Set([name])) {
  const lines = readFileSync(join(folder, name), 'utf8').split(/\r?\n/)
  const out = []
  for (const [index, line] of lines.entries()) {
    const at = `${relative(root, join(folder, name))}:${index + 1}`
    const part = INCLUDE.exec(line)?.[1]
    if (part !== undefined) {
      const file = `${part}.${basename(folder)}`
      if (!sourceFiles(folder).includes(file)) throw new Error(`${at}: there is no ${file} to include`)
      if (!seen.has(file)) out.push(expand(folder, file, seen.add(file)))
    } else if (BLOCK_COMMENT.test(line)) {
      throw new Error(`${at}: write comments as lines of \`--\`; only those are stripped`)
    } else if (STATEMENT.test(line) || !COMMENT_OR_BLANK.test(line)) {
      out.push(line)
    }
  }
  return out.join('\n')
}

/** A string; or an object of strings, where a file names its statements. */
function literal(text) {
  const [first, ...rest] = text.split(/^\s*--\s*@statement\s+(\w+)\s*$/m)
  if (rest.length === 0) return JSON.stringify(first)
  if (first.trim() !== '') throw new Error(`What comes before the first statement has no name: ${first}`)
  const statements = {}
  for (let i = 0; i < rest.length; i += 2) {
    if (rest[i] in statements) throw new Error(`There are two statements ${rest[i]}`)
    statements[rest[i]] = rest[i + 1].trim()
  }
  return JSON.stringify(statements)
}

const identifier = (name) => name.replace(/\.\w+$/, '').replace(/[-_](\w)/g, (_, letter) => letter.toUpperCase())

function read(file) {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}

if (isMain(import.meta.url)) {
  try {
    embed()
  } catch (error) {
    console.error(error.message)
    process.exitCode = 1
  }
}
