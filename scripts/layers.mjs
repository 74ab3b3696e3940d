/**
 * Imports point down the layers: public → primitives → core; backends see the contract and what is stateless beside it;
 * nobody sees a backend but connect.ts, and only when asked for it. Part of `npm run lint`.
 *
 * oxlint's no-restricted-imports compares the text of specifiers, so it cannot tell one backend's folder from another's,
 * and passes over import(). Here they are resolved.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import ts from 'typescript'
import { root } from './lib/paths.mjs'

/** Layer → the layers it may import beside itself. */
const BELOW = {
  core: [],
  primitives: ['core'],
  public: ['primitives', 'core'],
  testing: ['public', 'primitives', 'core'],
  decorator: ['public', 'primitives', 'core'],
  http: ['decorator', 'public', 'primitives', 'core'],
  backends: []
}
const STATELESS_CORE = ['backend', 'errors', 'key', 'clock', 'slots', 'token', 'registry'].map((name) => `src/core/${name}.ts`)

/** Why `from` may not import `to` (both as src/…), or undefined if it may. */
function objection(from, to, kind) {
  if (!to.startsWith('src/')) return 'is outside src'
  const [lower, upper] = [layer(to), layer(from)]
  if (upper === 'backends') {
    if (STATELESS_CORE.includes(to) || backend(to) === backend(from)) return undefined
    return 'a backend imports its own folder and, of core, backend, errors, key, clock, slots, token and registry'
  }
  if (lower === 'backends') {
    if (from !== 'src/connect.ts') return 'only connect.ts imports backends'
    return kind === 'static' ? 'connect.ts imports backends with import(), when asked for one' : undefined
  }
  if (!(upper in BELOW)) return `${upper} is no layer that scripts/layers.mjs knows`
  return lower === upper || BELOW[upper].includes(lower) ? undefined : `${upper} is not above ${lower}`
}

/** The folder under src; a file that is in none is public. */
const layer = (file) => (file.split('/').length > 2 ? file.split('/')[1] : 'public')
const backend = (file) => (layer(file) === 'backends' ? file.split('/')[2] : undefined)

/** Every import of a file, with the forms that bring in a module: import, export from, import(), import('…').T, require. */
function imports(file) {
  const source = ts.createSourceFile(file, readFileSync(join(root, file), 'utf8'), ts.ScriptTarget.Latest, true)
  const found = []
  const add = (kind, node, specifier) => {
    const line = source.getLineAndCharacterOfPosition(node.getStart()).line + 1
    found.push({ kind, line, specifier: specifier && ts.isStringLiteralLike(specifier) ? specifier.text : undefined })
  }
  const visit = (node) => {
    if (ts.isImportDeclaration(node)) add(node.importClause?.isTypeOnly ? 'type' : 'static', node, node.moduleSpecifier)
    else if (ts.isExportDeclaration(node) && node.moduleSpecifier)
      add(node.isTypeOnly ? 'type' : 'static', node, node.moduleSpecifier)
    else if (ts.isImportTypeNode(node)) add('type', node, node.argument.literal)
    else if (ts.isExternalModuleReference(node)) add('static', node, node.expression)
    else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword)
      add('lazy', node, node.arguments[0])
    else if (ts.isCallExpression(node) && node.expression.getText() === 'require') add('static', node, node.arguments[0])
    ts.forEachChild(node, visit)
  }
  visit(source)
  return found
}

let violations = 0
const report = (file, line, message) => {
  console.error(`${file}:${line}: ${message}`)
  violations++
}

const files = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .map((name) => `src/${name}`)
  .filter((name) => name.endsWith('.ts') && !name.endsWith('.test.ts'))

for (const file of files) {
  for (const { kind, line, specifier } of imports(file)) {
    if (specifier === undefined) report(file, line, 'a computed import cannot be checked, nor bundled')
    else if (/^(#|holdfast($|\/))/.test(specifier)) report(file, line, `import ${specifier} by its path within src`)
    else if (specifier.startsWith('.')) {
      const target = relative(root, resolve(root, dirname(file), specifier)).replace(/\.js$/, '.ts')
      const why = objection(file, target, kind)
      if (why) report(file, line, `may not import ${target}: ${why}`)
    }
  }
}
process.exitCode = violations > 0 ? 1 : 0
