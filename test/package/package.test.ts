/** What `npm install holdfast` gives, used by a project that has nothing else: the tarball, not the sources. */
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

const root = fileURLToPath(new URL('../..', import.meta.url))
const tsc = join(root, 'node_modules/typescript/bin/tsc')

/** Their types are those of the frameworks. */
const FRAMEWORKS = ['holdfast/express', 'holdfast/fastify', 'holdfast/hono', 'holdfast/nestjs']

let folder: string
let project: string
let subpaths: string[]

beforeAll(async () => {
  folder = await mkdtemp(join(process.env['HOLDFAST_TEST_DIR'] ?? tmpdir(), 'package-'))
  project = join(folder, 'project')
  await mkdir(project)
  await writeFile(join(project, 'package.json'), '{ "private": true }')

  // dist is there already (npm test builds first), and building here could disturb other tests.
  await exec(root, 'npm', ['pack', '--ignore-scripts', '--pack-destination', folder])
  const [tarball = 'none'] = (await readdir(folder)).filter((name) => name.endsWith('.tgz'))
  // Offline: there are no dependencies to fetch.
  await exec(project, 'npm', ['install', '--offline', '--ignore-scripts', '--no-audit', '--no-fund', join(folder, tarball)])

  const { exports } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { exports: object }
  subpaths = Object.keys(exports)
    .filter((path) => path !== './package.json')
    .map((path) => path.replace(/^\./, 'holdfast'))
})

afterAll(() => rm(folder, { recursive: true, force: true }))

describe('the installed package', () => {
  it('brings nothing with it', async () => {
    const installed = (await readdir(join(project, 'node_modules'))).filter((name) => !name.startsWith('.'))
    expect(installed).toEqual(['holdfast'])
  })

  it('contains what is built, its documentation and examples, and no more', async () => {
    const files = await readdir(join(project, 'node_modules/holdfast'), { recursive: true, withFileTypes: true })
    const names = files.filter((file) => file.isFile()).map((file) => file.name)
    // Pages may have pictures, and an example with decorators has to be compiled.
    expect(names.filter((name) => !/(\.m?js|\.d\.m?ts|^main\.ts|^(package|tsconfig)\.json|^LICENSE|\.md|\.svg)$/.test(name))).toEqual([])
    expect(names.filter((name) => /\.test\./.test(name))).toEqual([])
  })

  it('locks when imported', async () => {
    const said = await node(
      'import.mjs',
      `
      import { connect } from 'holdfast'
      const locks = await connect('memory:')
      console.log(await locks.withLock('k', async ({ fence }) => typeof fence))
      await locks.close()
      `
    )
    expect(said).toBe('bigint')
  })

  it('locks when required', async () => {
    const said = await node(
      'require.cjs',
      `
      const { createLocks } = require('holdfast')
      const { memoryBackend } = require('holdfast/memory')
      const locks = createLocks(memoryBackend())
      locks.withLock('k', ({ fence }) => typeof fence).then(console.log).then(() => locks.close())
      `
    )
    expect(said).toBe('bigint')
  })

  it('locks in a file where Node has SQLite, and else says what to install', async () => {
    const said = await node(
      'sqlite.mjs',
      `
      import { connect } from 'holdfast'
      const locks = await connect('sqlite:./locks.db').catch(({ name, message }) => console.log(name, message))
      if (locks) console.log(await locks.withLock('k', ({ fence }) => typeof fence))
      await locks?.close()
      `
    )
    if (process.getBuiltinModule('node:sqlite') as unknown) expect(said).toBe('bigint')
    else expect(said).toMatch(/^ConnectorError .*has no SQLite of its own.*npm i libsql\.$/)
  })

  it('loads every subpath, with import and with require, where no client is installed', async () => {
    // A module of Nest's is made with Nest.
    const alone = subpaths.filter((path) => path !== 'holdfast/nestjs')
    const list = JSON.stringify(alone)
    const count = String(alone.length)
    expect(await node('all.mjs', `console.log((await Promise.all(${list}.map((path) => import(path)))).length)`)).toBe(count)
    expect(await node('all.cjs', `console.log(${list}.map((path) => require(path)).length)`)).toBe(count)
  })

  it('says what to install when a client is missing', async () => {
    const said = await node(
      'missing.mjs',
      `
      import { connect, ConnectorError } from 'holdfast'
      const error = await connect('redis://127.0.0.1:1').catch((error) => error)
      console.log(error instanceof ConnectorError, error.name, error.message)
      `
    )
    expect(said).toMatch(/^true ConnectorError /)
    expect(said).toContain('npm i ioredis, or npm i redis')
  })

  it('has types that hold under strict NodeNext, ours checked too', async () => {
    await writeFile(
      join(project, 'types.mts'),
      `
      import { connect, createLocks } from 'holdfast'
      import { memoryBackend } from 'holdfast/memory'
      ${subpaths.filter((path) => !FRAMEWORKS.includes(path)).map((path, index) => `import * as all${index} from '${path}'; void all${index}`).join('\n      ')}

      const locks = await connect('memory:', { ttlMs: 10_000 })
      const doubled: bigint = await locks.withLock('k', async ({ fence, signal }) => (signal.aborted ? 0n : fence * 2n))
      await using own = createLocks(memoryBackend())
      await using lock = await own.lock('k', { waitMs: 0 })
      const maybe = await own.tryLock('k')
      // @ts-expect-error it may be null
      maybe.fence
      // @ts-expect-error no such option
      await own.lock('k', { ttl: 1 })
      void [doubled, lock.fence satisfies bigint, lock.signal satisfies AbortSignal]
      `
    )
    const compilerOptions = {
      module: 'NodeNext',
      target: 'ES2022',
      lib: ['ES2022', 'ESNext.Disposable'],
      strict: true,
      noEmit: true,
      // Of what a project for Node has, only its types are borrowed.
      types: ['node'],
      typeRoots: [join(root, 'node_modules/@types')]
    }
    await writeFile(join(project, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['types.mts'] }))
    await exec(project, process.execPath, [tsc, '-p', '.'])
  })
})

async function node(file: string, source: string): Promise<string> {
  await writeFile(join(project, file), source)
  return exec(project, process.execPath, [file])
}

/** Rejects with all that the program said: tsc, for one, complains on stdout. */
async function exec(cwd: string, command: string, args: string[]): Promise<string> {
  try {
    return (await promisify(execFile)(command, args, { cwd })).stdout.trim()
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string }
    throw new Error(`${command} ${args.join(' ')}\n${stdout}${stderr}`, { cause: error })
  }
}
