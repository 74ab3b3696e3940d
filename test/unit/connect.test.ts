/** From a URL or a backend to a manager. */
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { ConfigurationError, connect, ConnectorError, InvalidTtlError, type BackendFactory } from '../../src/index.js'
import { FaultyBackend } from '../support/faulty-backend.js'
import { ManualClock } from '../support/manual-clock.js'

beforeEach(() => void vi.stubEnv('HOLDFAST_URL', undefined))
afterEach(() => void vi.unstubAllEnvs())

const faulty = (inner: BackendFactory = memoryBackend()) => new FaultyBackend(inner, new ManualClock())

describe('without a target', () => {
  it('and without HOLDFAST_URL, is a file in the state folder that all processes share, announced once', async () => {
    const state = mkdtempSync(join(tmpdir(), 'holdfast-state-'))
    onTestFinished(() => rmSync(state, { recursive: true }))
    vi.stubEnv('XDG_STATE_HOME', state)
    const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
    onTestFinished(() => said.mockRestore())
    await using one = await connect()
    vi.stubEnv('HOLDFAST_URL', '')
    await using other = await connect(undefined, { ttlMs: 5_000 })
    await using lock = await one.lock('k')
    expect(lock.key).toBe('k')
    expect(await other.tryLock('k')).toBeNull()
    expect(statSync(join(state, 'holdfast/locks.db')).mode & 0o777).toBe(0o600)
    expect(statSync(join(state, 'holdfast')).mode & 0o777).toBe(0o700)
    expect(said.mock.calls.map(([text]) => text)).toEqual([expect.stringMatching(/^holdfast: .*this machine only.*sqlite:/)])
  })

  it('and without HOLDFAST_URL, in production, says how to give one', async () => {
    vi.stubEnv('NODE_ENV', 'production')
    await expect(connect()).rejects.toThrow(ConfigurationError)
    await expect(connect()).rejects.toThrow(/redis:\/\/localhost:6379.*HOLDFAST_URL.*connect\('sqlite:'\)/)
  })

  it('cannot be an empty text, which is rather a variable that is not set', async () => {
    await expect(connect('')).rejects.toThrow(ConfigurationError)
  })

  it('takes HOLDFAST_URL', async () => {
    vi.stubEnv('HOLDFAST_URL', 'memory:')
    await using locks = await connect(undefined, { owner: 'from env' })
    expect(locks.owner).toMatch(/^from env#/)
    expect(await locks.withLock('k', () => 1)).toBe(1)
  })

  it('says what is wrong with a HOLDFAST_URL', async () => {
    vi.stubEnv('HOLDFAST_URL', 'localhost')
    await expect(connect()).rejects.toThrow('this is none')
  })

  it('prefers what it is given over HOLDFAST_URL', async () => {
    vi.stubEnv('HOLDFAST_URL', 'nonsense:')
    await using locks = await connect('memory:')
    expect(await locks.tryLock('k')).not.toBeNull()
  })
})

describe('a URL', () => {
  it('memory: gives a manager that works, with the given options', async () => {
    await using locks = await connect('memory:', { prefix: 'shop', ttlMs: 500, owner: 'me' })
    const lock = await locks.lock('k')
    expect(lock.remainingMs).toBeLessThanOrEqual(500)
    expect(locks.owner).toMatch(/^me#/)
  })

  const unknown = [
    'http://localhost', 'mongodb://localhost', 'REDI:x', 'file:///etc/passwd', 'constructor:',
    '__proto__:', 'javascript:alert(1)',
  ]
  it.each(unknown)(
    '%s is of an unknown scheme',
    async (url) => {
      const error = await failure(connect(url))
      expect(error).toBeInstanceOf(ConfigurationError)
      expect(error.message).toMatch(/does not know the scheme|this is none/)
    },
  )

  it.each(['localhost', '//localhost', 'redis', ' ', '\0', 'http://', '6379'])('%j is none', async (url) => {
    await expect(connect(url)).rejects.toThrow(ConfigurationError)
  })

  it.each([7, null, {}, [], true, new URL('memory:')])('cannot be %s', async (target) => {
    await expect(connect(target as string)).rejects.toThrow(ConfigurationError)
  })

  it('without its scheme is understood, but not guessed', async () => {
    await expect(connect('localhost:6379')).rejects.toThrow('Did you mean redis://localhost:6379?')
  })

  it.each(['redis:localhost', 'redis://', 'redis://localhost/abc', 'redis://localhost/0/1'])('%s is no address of a Redis', async (url) => {
    await expect(connect(url)).rejects.toBeInstanceOf(ConfigurationError)
  })

  it.each([
    'redis//:canary@localhost',
    'postgres://user:canary@[::1/shop',
    'mysql://user:canary@db',
    'etcd://user:canary@a:b',
    'etcd://user:canary@a?ca=x',
    'http://user:canary@localhost?password=canary',
    ':canary@localhost:6379',
    'mongodb://:canary@[::1',
  ])('%s is refused without its password being told', async (url) => {
    for (const attempt of [() => connect(url), () => (vi.stubEnv('HOLDFAST_URL', url), connect())]) {
      const error = await failure(attempt())
      expect(error).toBeInstanceOf(ConfigurationError)
      expect(inspect(error, { depth: 10, showHidden: true }).split('\n    at ')[0]).not.toContain('canary')
    }
  })

  it('of a server that is not there is a ConnectorError within the time that was given, and tells no password', async () => {
    const port = await closedPort()
    const error = await failure(connect(`redis://user:canary@127.0.0.1:${port}`, { connectTimeoutMs: 300 }))
    expect(error).toHaveProperty('status', 503)
    expect(inspect(error, { depth: 10, showHidden: true })).not.toContain('canary')
  })
})

describe('a backend as target', () => {
  it('is asked whether it is ready, and nothing else', async () => {
    const store = faulty()
    const locks = await connect(store.factory, { prefix: 'shop' })
    expect(store.requests.map(({ method }) => method)).toEqual(['ready'])
    await locks.close()
  })

  it('can serve several managers, which exclude each other', async () => {
    const backend = memoryBackend()
    const [a, b] = [await connect(backend), await connect(backend)]
    await a.lock('k')
    expect(await b.tryLock('k')).toBeNull()
  })

  it('that is not ready: its error comes out as it is, and it is closed', async () => {
    const store = faulty()
    const error = new ConnectorError('maxmemory-policy evicts locks')
    store.fail('ready', error)
    await expect(connect(store.factory)).rejects.toBe(error)
    expect(store.requests.map(({ method }) => method)).toEqual(['ready', 'close'])
  })

  it('that is not ready and fails to close as well: what came first comes out', async () => {
    const store = faulty()
    const error = new ConnectorError('NOAUTH')
    store.fail('ready', error)
    store.fail('close', new Error('cannot close either'))
    await expect(connect(store.factory)).rejects.toBe(error)
  })

  it('that does not answer is given up after connectTimeoutMs, and closed', async () => {
    const store = faulty()
    store.blackHole('ready')
    const error = await failure(connect(store.factory, { connectTimeoutMs: 20 }))
    expect(error).toBeInstanceOf(ConnectorError)
    expect(error.message).toBe('The store did not answer within 20 ms (connectTimeoutMs).')
    expect(store.sent('close')).toHaveLength(1)
  })

  it('that answers too late leaves no rejection behind', async () => {
    const store = faulty()
    const ready = store.blackHole('ready')
    const unheard: unknown[] = []
    const hear = (reason: unknown) => unheard.push(reason)
    process.on('unhandledRejection', hear)
    await failure(connect(store.factory, { connectTimeoutMs: 5 }))
    ready.fail(new Error('too late'))
    await new Promise((resolve) => setTimeout(resolve, 5))
    process.off('unhandledRejection', hear)
    expect(unheard).toEqual([])
  })

  it('is not opened for options that make no sense', async () => {
    let opened = 0
    const backend: BackendFactory = (scope) => (opened++, memoryBackend()(scope))
    await expect(connect(backend, { ttlMs: 5 })).rejects.toThrow(InvalidTtlError)
    await expect(connect(backend, { prefix: '' })).rejects.toThrow(ConfigurationError)
    await expect(connect(backend, { waitMs: -1 })).rejects.toThrow(ConfigurationError)
    expect(opened).toBe(0)
  })
})

it('an option that there is not is refused, and those are named that there are', async () => {
  const error = await failure(connect('memory:', { connectTimeout: 5 } as object))
  expect(error).toBeInstanceOf(ConfigurationError)
  expect(error.message).toMatch(/^There is no connect option "connectTimeout"\..* connectTimeoutMs\.$/)
})

describe('connectTimeoutMs', () => {
  it.each([0, -1, Number.NaN, null, 'soon'])('cannot be %s', async (connectTimeoutMs) => {
    const store = faulty()
    await expect(connect(store.factory, { connectTimeoutMs: connectTimeoutMs as number })).rejects.toThrow(ConfigurationError)
    expect(store.requests).toEqual([])
  })

  it.each([Infinity, 2 ** 31, 1e12])('of %d is either refused or as long as it says, and not 1 ms', async (connectTimeoutMs) => {
    const store = faulty()
    const ready = store.hold('ready')
    const outcome = connect(store.factory, { connectTimeoutMs }).then(
      (locks) => locks,
      (error: unknown) => error,
    )
    await new Promise((resolve) => setTimeout(resolve, 20))
    ready.release()
    expect(await outcome).not.toBeInstanceOf(ConnectorError)
  })
})

async function failure(attempt: Promise<unknown>): Promise<Error> {
  return attempt.then(
    () => {
      throw new Error('It connected.')
    },
    (error: unknown) => error as Error,
  )
}

/** A port on which nobody listens. */
async function closedPort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}
