/** The example of each framework as it is started by hand: two processes of it on Redis are one shop. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { transform } from 'esbuild'
import ts from 'typescript'
import { afterAll, beforeAll, describe, expect, it, type TestContext } from 'vitest'
import type { Problem } from '../../src/http/problem.js'
import { connect, type LockManager } from '../../src/index.js'
import { makeFolder } from '../support/processes.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { until } from '../support/until.js'

const folder = fileURLToPath(new URL('../../examples/web', import.meta.url))
/** Long enough that all others have been refused. */
const BANK_MS = 3_000
/** As in the example. */
const CANCEL_MS = BANK_MS / 3

let redis: RedisServer
let locks: LockManager
/** What the compiler makes of the one with decorators; beside its source, so that it finds what it imports. */
let built: string

beforeAll(async () => {
  redis = await startRedis()
  locks = await connect(redis.url)
  built = mkdtempSync(join(folder, 'built-'))
  writeFileSync(join(built, 'nestjs.js'), compiled())
  const { code } = await transform(compiled(), { minify: true, format: 'esm' })
  writeFileSync(join(built, 'minified.js'), code)
})
afterAll(async () => {
  rmSync(built, { recursive: true })
  await locks.close()
  await redis.stop()
})

async function isHeld(key: string): Promise<boolean> {
  for await (const resource of locks.inspect(key)) if (resource.key === key) return resource.holders.length > 0
  return false
}

function compiled(): string {
  const config = ts.readConfigFile(join(folder, 'nestjs/tsconfig.json'), (file) => ts.sys.readFile(file))
  const { options } = ts.parseJsonConfigFileContent(config.config, ts.sys, join(folder, 'nestjs'))
  return ts.transpileModule(readFileSync(join(folder, 'nestjs/main.ts'), 'utf8'), { compilerOptions: { ...options, module: ts.ModuleKind.ESNext } }).outputText
}

async function open(file: string, { onTestFinished }: TestContext, env: NodeJS.ProcessEnv = {}): Promise<{ url: string; close(): Promise<unknown> }> {
  const child = spawn(process.execPath, [file], {
    env: { ...process.env, HOLDFAST_URL: redis.url, PORT: '0', BANK_MS: String(BANK_MS), ...env },
    // On stderr it says that it was not told where.
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  const exited = once(child, 'exit') as Promise<[number | null, string | null]>
  let url: string | undefined
  createInterface(child.stdout).on('line', (line) => (url ??= /is open at (http\S+)\.( |$)/.exec(line)?.[1]))
  await until('the shop to open', async () => url !== undefined)
  const close = async () => {
    child.kill('SIGTERM')
    const [code, signal] = await exited
    return code ?? signal
  }
  return { url: url!, close }
}

describe.concurrent.each([
  ['express', () => join(folder, 'express.mjs'), 0],
  ['fastify', () => join(folder, 'fastify.mjs'), 0],
  ['hono', () => join(folder, 'hono.mjs'), 0],
  // When it has shut down, it ends of the signal that told it to.
  ['nestjs', () => join(built, 'nestjs.js'), 'SIGTERM'],
  ['nestjs-minified', () => join(built, 'minified.js'), 'SIGTERM'],
] as const)('%s', (name, file, end) => {
  it('pays once, says 409 to all others on both, packs one after another, and waits for whoever is not paid for any more', async (context) => {
    const shops = await Promise.all([open(file(), context), open(file(), context)])
    const post = (what: string, i: number) => fetch(`${shops[i % 2]!.url}/orders/${name}/${what}`, { method: 'POST' })
    const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => post('pay', i)))
    const paid = answers.filter(({ status }) => status === 200)
    const refused = answers.filter(({ status }) => status === 409)
    expect([paid.length, refused.length]).toEqual([1, 19])
    expect(await paid[0]!.json()).toMatchObject({ order: name, paid: true })
    for (const one of refused) expect((await one.json()) as Problem).toMatchObject({ status: 409, key: `order:${name}` })
    const packed = await Promise.all(Array.from({ length: 4 }, (_, i) => post('pack', i)))
    expect(packed.map(({ status }) => status)).toEqual([200, 200, 200, 200])

    // On a connection of its own: for one that is cut, `fetch` opens another, and servers wait for that when they close.
    const leaver = request(`${shops[0]!.url}/orders/${name}/pay`, { method: 'POST', agent: false }).on('error', () => {}).end()
    await until('the payment', () => isHeld(`order:${name}`))
    const next = post('pack', 1)
    const leftAt = performance.now()
    leaver.destroy()
    expect((await next).status).toBe(200)
    // It was let in when the first one had settled, which is when it has cancelled the payment; and not when its hold expired.
    const waitedMs = performance.now() - leftAt
    expect(waitedMs).toBeGreaterThan(CANCEL_MS * 0.9)
    expect(waitedMs).toBeLessThan(BANK_MS + CANCEL_MS)
    for (const shop of shops) expect(await shop.close()).toBe(end)
  })

  it('opens on the embedded default', async (context) => {
    const XDG_STATE_HOME = makeFolder('state')
    context.onTestFinished(() => rmSync(XDG_STATE_HOME, { recursive: true, force: true }))
    const shop = await open(file(), context, { HOLDFAST_URL: '', XDG_STATE_HOME, BANK_MS: '10' })
    expect(await (await fetch(`${shop.url}/orders/1/pay`, { method: 'POST' })).json()).toMatchObject({ order: '1', paid: true })
    expect(await shop.close()).toBe(end)
    expect(readdirSync(XDG_STATE_HOME)).toEqual(['holdfast'])
  })
})

it('of every example there is a command, and the other way round', () => {
  const { scripts } = JSON.parse(readFileSync(join(folder, '../../package.json'), 'utf8')) as { scripts: Record<string, string> }
  const commands = Object.keys(scripts).filter((script) => script.startsWith('example:'))
  expect(commands).toEqual(['example:express', 'example:fastify', 'example:hono', 'example:nestjs'])
})
