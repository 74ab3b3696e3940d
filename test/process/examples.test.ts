/** What the documentation shows is true: examples run and say what they should, code blocks compile, links lead somewhere. */
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import ts from 'typescript'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { makeFolder } from '../support/processes.js'
import { startEtcd } from '../support/etcd-server.js'
import { startMariaDb } from '../support/mariadb-server.js'
import { startPostgres } from '../support/postgres-server.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** What each example prints, with unique and passing things left out: see `said`. */
const EXAMPLES: Record<string, readonly string[]> = {
  'with-lock': ['without a lock: 1', 'with a lock: 10'],
  'bank-transfer': ['in all: 500', 'below zero: 0', 'some had to be applied again: true'],
  'try-lock': ['first: sending', 'second: somebody else is at it', 'third: sending', 'waited in vain: null'],
  loss: [
    'slow: stopped, OWNERSHIP_LOST',
    'quick: written',
    'slow: refused, its fence is too low',
    'the report is from: quick',
    'released: slow false, quick true',
  ],
  mutex: [
    'here: has it, and the store says so, too: true',
    'there: LockedError',
    'there: has it, with a higher fence: true',
    'here: LockReleasedError',
    'here: SessionExpiredError',
    'there: has taken up the session, and what it had: true',
  ],
  'single-flight': ['answers: 20, all the same: true, loaded: 1'],
  'pay-once': ['first: the process has died', 'then: paid 1 time, told again 4 times', 'the bank was charged: 42'],
  'hot-key': ['balance: 10000', 'fences only grow: true', '10,000 holders in N ms'],
  reentrancy: ['charged 5', 'charged 3', 'the same hold, the same fence: true', 'LockAlreadyHeldError', 'tryLock: null'],
  'hand-over-to-another-process': [
    'giver holds upload:9, fence …0',
    'giver released it: false',
    'taker holds upload:9, fence …1',
    'taker released it: true',
  ],
  'who-holds-it': [
    'Lock not acquired: "deploy" is held by ada for N ms with N ms of its TTL left (release); nobody else waits. Pass waitMs to wait for it.',
    'deploy is held by ada for release 1.2.3',
    'it is waited for by ben',
    'was held: true',
    'ada: The lock on "deploy" is lost: it was revoked. Another process may hold it now; stop the guarded work.',
    'ben has had it',
  ],
  events: [
    'event acquired: a',
    'info  lock acquired: a',
    'event released: a',
    'info  lock released: a',
    'event acquired: b',
    'info  lock acquired: b',
    'event waiting: b',
    'event refused: b',
    'tryLock: null',
    'event acquired: b',
    'info  lock acquired: b',
    'event released: b',
    'info  lock released: b',
    'event released: b',
    'info  lock released: b',
    'event acquired: c',
    'info  lock acquired: c',
    'event lost: c',
    'error ownership lost: c, The lock on "c" is lost: it was not renewed within its TTL (N ms). Another process may hold it now; stop the guarded work.',
  ],
}

/** Two callers at once: who gets the lock is certain, who prints first is not. */
const UNORDERED = ['try-lock', 'events']

async function run(example: string, args: readonly string[] = [], env: Record<string, string> = {}): Promise<string> {
  const { HOLDFAST_URL: _, ...inherited } = process.env
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [`examples/${example}.mjs`, ...args], {
    cwd: root,
    env: { ...inherited, ...env },
    timeout: 60_000,
    killSignal: 'SIGKILL',
  })
  expect(stderr).toBe('')
  return stdout
}

/** Without what makes owners unique, the backend's name, and times. */
function said(stdout: string): string[] {
  const text = stdout.replace(/#[0-9a-f]{8}/g, '').replace(/ on (memory|redis)$/gm, '').replace(/\d+ ms/g, 'N ms')
  return text.trimEnd().split('\n')
}

describe('examples', () => {
  let redis: RedisServer
  let demo: Promise<string>
  /** Where the default file is, for these tests. */
  const own = { XDG_STATE_HOME: makeFolder('state') }

  beforeAll(async () => {
    redis = await startRedis()
    // It takes its time; the others run meanwhile.
    demo = run('workers', ['--seconds', '22'], own)
    demo.catch(() => {})
  })
  afterAll(async () => {
    await redis.stop()
    rmSync(own.XDG_STATE_HOME, { recursive: true, force: true })
  })

  test('each one is run here', () => {
    const files = readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.mjs')).sort()
    expect(files).toEqual([...Object.keys(EXAMPLES), 'beside-etcdctl', 'election-failover', 'invoice-numbers', 'sell-once', 'workers'].map((name) => `${name}.mjs`).sort())
  })

  const cases = Object.keys(EXAMPLES).flatMap((name) => [[name, 'memory'], [name, 'Redis']] as const)
  test.each(cases)('%s on %s', async (name, backend) => {
    const lines = said(await run(name, [], backend === 'Redis' ? { HOLDFAST_URL: redis.url } : {}))
    const expected = EXAMPLES[name]!
    if (UNORDERED.includes(name)) expect(lines.sort()).toEqual([...expected].sort())
    else expect(lines).toEqual(expected)
  })

  test.each(['a file', 'Redis'])('election-failover on %s: whoever is next leads, and the late write of one that was stopped is refused', async (backend) => {
    const lines = said(await run('election-failover', [], backend === 'Redis' ? { HOLDFAST_URL: redis.url } : {}))
    // Who of the first three is first is not certain.
    const [first, second, third] = [0, 2, 4].map((line) => /^(Ada|Bea|Cleo) leads/.exec(lines[line]!)?.[1])
    expect(lines).toEqual([
      `${first} leads: her write is accepted`,
      `${first} is killed`,
      `${second} leads, N ms later: her write is accepted`,
      `${second} resigns`,
      `${third} leads, N ms later: her write is accepted`,
      `${third} is stopped`,
      'Dora leads, N ms later: her write is accepted',
      `${third} goes on, and her signal has aborted: her late write is refused`,
      `as observed: ${first}, ${second}, ${third}, Dora; in order: true`,
    ])
    expect(new Set([first, second, third]).size).toBe(3)
  })

  test('beside-etcdctl', async () => {
    await using etcd = await startEtcd()
    expect(said(await run('beside-etcdctl', [], { HOLDFAST_URL: etcd.url }))).toEqual([
      'holdfast: has it', 'etcdctl: waits', 'holdfast: done', 'etcdctl: has it', 'etcdctl: done', 'holdfast: has it again, with a higher fence: true',
    ])
  })

  test('sell-once, on PostgreSQL', async () => {
    await using postgres = await startPostgres({ durable: false })
    expect(said(await run('sell-once', [], { DATABASE_URL: postgres.url }))).toEqual(['asked for: 8, sold: 3', 'left: 0'])
  })

  test('invoice-numbers, on MariaDB', async () => {
    await using mariaDb = await startMariaDb({ durable: false })
    expect(said(await run('invoice-numbers', [], { DATABASE_URL: mariaDb.url }))).toEqual(['asked for: 8, made: 7', 'numbers: 1, 2, 3, 4, 5, 6, 7'])
  })

  test('they leave nothing on the server that does not go by itself, but the fence and the last revision', async () => {
    const stays: string[] = []
    for (const key of (await redis.cli('KEYS', '*')) as string[]) if ((await redis.cli('PTTL', key)) === -1) stays.push(key)
    expect(stays.sort()).toEqual(['holdfast:fence', 'holdfast:stm1'])
  })

  test('workers: the lock moves on from one that is killed, and from one that is stopped, whose late write is refused', async () => {
    const lines = (await demo).trimEnd().split('\n')
    const summary = /^✓ sold exactly (\d+), stale writes refused: (\d+), never two at once$/.exec(lines.at(-1)!)
    const told = [/Dan is killed in the middle of a sale/, /Eve is stopped in the middle of a sale/, /the lock moves on to \w+, \d+ ms later/, /Eve goes on, .* lost: OWNERSHIP_LOST/, /Eve writes with fence …\d+: refused/]
    for (const what of told) expect(lines).toContainEqual(expect.stringMatching(what))
    expect(Number(summary?.[1])).toBeGreaterThan(5)
    expect(Number(summary?.[2])).toBeGreaterThan(0)
    // For a terminal only: the redrawing, and colours.
    expect(lines.join('')).not.toContain('\x1b')
  })

  test('workers: ends when told to', async () => {
    const startedAt = performance.now()
    expect(await run('workers', ['--seconds', '0.5'], own)).toMatch(/never two at once\n$/)
    expect(performance.now() - startedAt).toBeLessThan(10_000)
  })
})

interface Block {
  readonly file: string
  /** Of the opening fence, from 1. */
  readonly line: number
  /** What follows the three backticks. */
  readonly info: string
  readonly code: string
}

const pages = ['README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md', 'CHANGELOG.md', ...markdownIn('docs')]

function markdownIn(folder: string): string[] {
  const names = readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
  return names.filter((name) => name.endsWith('.md')).map((name) => join(folder, name)).sort()
}

const read = (file: string): string => readFileSync(join(root, file), 'utf8')

/** Fenced blocks, also indented ones (in lists). */
function blocksOf(file: string): Block[] {
  const found: Block[] = []
  let open: { line: number; info: string; indent: string; lines: string[] } | undefined
  for (const [index, text] of read(file).split('\n').entries()) {
    const fence = /^( *)```(.*)$/.exec(text)
    if (open && fence && fence[2] === '') {
      found.push({ file, line: open.line, info: open.info, code: open.lines.join('\n') })
      open = undefined
    } else if (open) open.lines.push(text.slice(open.indent.length))
    else if (fence) open = { line: index + 1, info: fence[2]!.trim(), indent: fence[1]!, lines: [] }
  }
  expect(open, `${file}: a code block is not closed`).toBeUndefined()
  return found
}

/** Compiles blocks as modules of this package, each on the very lines it has on its page. */
function complaintsAbout(blocks: readonly Block[]): string[] {
  const sources = new Map(blocks.map((block) => [join(root, `${block.file}.${block.line}.mts`), '\n'.repeat(block.line) + block.code]))
  const options: ts.CompilerOptions = {
    module: ts.ModuleKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    lib: ['lib.es2023.d.ts', 'lib.esnext.disposable.d.ts'],
    types: ['node'],
    strict: true,
    noUncheckedIndexedAccess: true,
    exactOptionalPropertyTypes: true,
    skipLibCheck: true,
    noEmit: true,
  }
  const disk = ts.createCompilerHost(options)
  const host: ts.CompilerHost = {
    ...disk,
    getCurrentDirectory: () => root,
    fileExists: (name) => sources.has(name) || disk.fileExists(name),
    readFile: (name) => sources.get(name) ?? disk.readFile(name),
    getSourceFile(name, version, ...rest) {
      const source = sources.get(name)
      return source === undefined ? disk.getSourceFile(name, version, ...rest) : ts.createSourceFile(name, source, version)
    },
  }
  const program = ts.createProgram([join(root, 'docs/stand-ins.d.ts'), ...sources.keys()], options, host)
  return ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const page = file ? relative(root, file.fileName).replace(/\.\d+\.mts$/, '') : 'TypeScript'
    const line = file && start !== undefined ? file.getLineAndCharacterOfPosition(start).line + 1 : 0
    return `${page}:${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`
  })
}

describe('the code blocks of the documentation', () => {
  const blocks = pages.flatMap(blocksOf)

  test('compile under strict NodeNext, against what is built', () => {
    const code = blocks.filter(({ info }) => info === 'ts')
    expect(code.length).toBeGreaterThan(20)
    expect(complaintsAbout(code)).toEqual([])
  })

  test('the check sees what is wrong, and where', () => {
    const bad = "import { connect } from 'holdfast'\n\nconst locks = await connect('memory:')\nawait locks.lock('k', { ttl: 1 })\n"
    const [complaint, ...others] = complaintsAbout([{ file: 'docs/bad.md', line: 10, info: 'ts', code: bad }])
    expect(complaint).toMatch(/^docs\/bad\.md:14: .*'ttl' does not exist in type 'LockOptions'/)
    expect(others).toEqual([])
  })

  test('are named by a language, and left unchecked only with a reason', () => {
    const allowed = /^(ts|ts ignore: .+|sh|sql|text|mermaid|)$/
    expect(blocks.filter(({ info }) => !allowed.test(info)).map(({ file, line, info }) => `${file}:${line}: ${info}`)).toEqual([])
  })
})

describe('the links of the documentation', () => {
  /** As GitHub makes them. */
  const anchorOf = (heading: string): string =>
    heading.toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, '').trim().replace(/\s/g, '-')
  const anchorsOf = (file: string): string[] => [...read(file).matchAll(/^#+ (.+)$/gm)].map(([, heading]) => anchorOf(heading!))

  test('lead to a file, and to a heading in it', () => {
    const broken: string[] = []
    for (const page of pages) {
      for (const [, target] of read(page).matchAll(/\]\(([^)\s]+)\)/g)) {
        if (/^https?:/.test(target!)) continue
        const [path = '', anchor] = target!.split('#')
        const file = path === '' ? page : relative(root, resolve(root, dirname(page), path))
        const there = existsSync(join(root, file)) && (anchor === undefined || anchorsOf(file).includes(anchor))
        if (!there) broken.push(`${page}: ${target}`)
      }
    }
    expect(broken).toEqual([])
  })
})
