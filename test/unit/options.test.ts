/** Bad input is refused before any request. */
import { hostname } from 'node:os'
import { describe, expect, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import {
  ConfigurationError, createLocks, InvalidKeyError, InvalidTtlError, type LockOptions, type ManagerOptions,
} from '../../src/index.js'
import { manualWorld } from '../support/manual-world.js'

function cyclic(): object {
  const it: Record<string, unknown> = {}
  it['self'] = it
  return it
}

/** Every way to ask for a lock; each must refuse what it is given before it sends anything. */
const CALLS = {
  lock: (locks: ReturnType<typeof createLocks>, key: string, options: LockOptions) => locks.lock(key, options),
  tryLock: (locks: ReturnType<typeof createLocks>, key: string, options: LockOptions) => locks.tryLock(key, options),
  withLock: (locks: ReturnType<typeof createLocks>, key: string, options: LockOptions) => locks.withLock(key, options, () => {}),
}

describe.each(Object.entries(CALLS))('%s', (_, call) => {
  async function refusal(key: unknown, options: object): Promise<Error> {
    const { manager, store, clock } = manualWorld()
    let thrown: unknown
    await call(manager(), key as string, options).catch((error: unknown) => (thrown = error))
    expect(store.requests).toEqual([])
    expect(clock.pending()).toBe(0)
    return thrown as Error
  }

  it.each([
    ['nothing', ''],
    ['null', null],
    ['undefined', undefined],
    ['a number', 7],
    ['513 bytes', 'x'.repeat(513)],
    ['half a character', '\ud83d'],
  ])('refuses %s as a key', async (__, key) => {
    expect(await refusal(key, {})).toBeInstanceOf(InvalidKeyError)
  })

  it.each([99, 0, -1, -10_000, 100.5, Number.NaN, Infinity, -Infinity, 2 ** 31, 2 ** 53, '1000', 1000n, null, {}, [1_000], true])(
    'refuses a TTL of %s',
    async (ttlMs) => {
      const error = await refusal('k', { ttlMs })
      expect(error).toBeInstanceOf(InvalidTtlError)
      expect(error.message).toContain('ttlMs')
    },
  )

  it.each([
    ['waitMs', [-1, Number.NaN, -Infinity, 2 ** 31, '0', null, true]],
    ['retryMs', [0, -1, Number.NaN, Infinity, 2 ** 31, '50', null]],
    ['renewEveryMs', [0, -1, Number.NaN, Infinity, '50', null]],
    ['maxHoldMs', [0, -1, Number.NaN, Infinity, 2 ** 31, '50', null]],
    ['autoRenew', ['yes', 1, 0, null]],
    ['reentrant', ['yes', 1, 0, null]],
    ['fairness', ['fair', '', null, true]],
    ['signal', [null, {}, new AbortController(), { aborted: false }]],
    ['type', [1, null, {}, 'x'.repeat(129), '锁'.repeat(43)]],
    ['metadata', [() => {}, Symbol('s'), 10n, cyclic(), 'x'.repeat(4_095), { x: 'x'.repeat(4_096) }, '锁'.repeat(1_365)]],
  ] as [string, unknown[]][])('refuses a %s that makes no sense', async (name, values) => {
    for (const value of values) {
      const error = await refusal('k', { [name]: value })
      expect(error, `${name}: ${String(value)}`).toBeInstanceOf(ConfigurationError)
      expect(error.message).toContain(name)
    }
  })

  it('refuses a renewal that would come after the TTL', async () => {
    expect(await refusal('k', { ttlMs: 1_000, renewEveryMs: 1_000 })).toBeInstanceOf(ConfigurationError)
    // The holder's own deadline, which is the earlier one, would end the lock.
    expect(await refusal('k', { ttlMs: 1_000, renewEveryMs: 979 })).toBeInstanceOf(ConfigurationError)
    expect(await refusal('k', { ttlMs: 1_000, renewEveryMs: 1_001 })).toHaveProperty('message', expect.stringContaining('1001'))
    // The manager's TTL counts as well.
    expect(await refusal('k', { renewEveryMs: 10_000 })).toBeInstanceOf(ConfigurationError)
  })

  it('refuses an option that there is not, and says which there are', async () => {
    for (const name of ['ttl', 'ttlms', 'timeout', 'wait', 'retry', '__proto', 'constructor']) {
      const error = await refusal('k', { [name]: 1_000 })
      expect(error).toBeInstanceOf(ConfigurationError)
      expect(error.message).toContain(`"${name}"`)
      expect(error.message).toContain('ttlMs, waitMs, retryMs')
    }
  })

  it.each([5_000, 'fast', true, null])('refuses %s in place of options', async (options) => {
    expect(await refusal('k', options as unknown as object)).toBeInstanceOf(ConfigurationError)
  })

  it('says what is wrong without a request even when the signal is aborted already', async () => {
    expect(await refusal('', { signal: AbortSignal.abort() })).toBeInstanceOf(InvalidKeyError)
  })

  it.each<LockOptions>([
    { ttlMs: 100 },
    { ttlMs: 2 ** 31 - 1 },
    { waitMs: 0 },
    { waitMs: 2 ** 31 - 1 },
    { waitMs: Infinity },
    { waitMs: 0.5 },
    { retryMs: 1 },
    { autoRenew: false },
    { ttlMs: 1_000, renewEveryMs: 978 },
    { maxHoldMs: 1 },
    { reentrant: true },
    { fairness: 'strict' },
    { fairness: 'bounded' },
    { type: '' },
    { type: 'x'.repeat(128) },
    { metadata: null },
    { metadata: 'x'.repeat(4_094) },
    { metadata: { a: [1, 'two', null, { b: false }] } },
    { signal: new AbortController().signal },
  ])('accepts %j', async (options) => {
    const { manager } = manualWorld()
    await call(manager(), 'k', options)
  })
})

it('withLock refuses to run something that is no function', async () => {
  const { manager, store } = manualWorld()
  const locks = manager()
  await expect(locks.withLock('k', 'work' as never)).rejects.toThrow(ConfigurationError)
  await expect(locks.withLock('k', {}, undefined as never)).rejects.toThrow(/needs a function/)
  expect(store.requests).toEqual([])
})

describe('the TTL', () => {
  it('is the call’s, else the manager’s, else ten seconds', async () => {
    const { manager, store } = manualWorld()
    const ttlOfLast = () => store.sent('claim').at(-1)!.args[0][0].ttlMs
    await manager().lock('a')
    expect(ttlOfLast()).toBe(10_000)
    const locks = manager({ ttlMs: 4_000 })
    await locks.lock('b')
    expect(ttlOfLast()).toBe(4_000)
    await locks.lock('c', { ttlMs: 7_000 })
    expect(ttlOfLast()).toBe(7_000)
  })

  it('is raised to the minimum of the store, which remainingMs shows', async () => {
    const { manager } = manualWorld({ minTtlMs: 2_000 })
    const lock = await manager().lock('a', { ttlMs: 500 })
    expect(lock.remainingMs).toBe(2_000 * 0.999 - 40)
  })

  it('is raised to the minimum of the store by extend() too', async () => {
    const { manager, store } = manualWorld({ minTtlMs: 2_000 })
    const lock = await manager().lock('a')
    await lock.extend(500)
    expect(store.sent('renew').at(-1)!.args[0][0].ttlMs).toBe(2_000)
    expect(lock.remainingMs).toBe(2_000 * 0.999 - 40)
  })
})

describe('what goes along with a lock', () => {
  it('is its type and its metadata, as JSON', async () => {
    const { manager, store } = manualWorld()
    await manager().lock('a', { type: 'report', metadata: { job: [1, null] } })
    const [claim] = store.sent('claim')[0]!.args[0]
    expect(claim).toMatchObject({ type: 'report', metadata: '{"job":[1,null]}' })
  })

  it('is nothing unless it is given', async () => {
    const { manager, store } = manualWorld()
    await manager().lock('a')
    const [claim] = store.sent('claim')[0]!.args[0]
    expect(Object.keys(claim).sort()).toEqual(['id', 'limit', 'resource', 'take', 'ttlMs'])
  })
})

describe('a manager', () => {
  const make = (options: object) => () => createLocks(memoryBackend(), options as ManagerOptions)

  it('can be made without options', async () => {
    const locks = createLocks(memoryBackend())
    expect(await locks.withLock('k', () => 1)).toBe(1)
    await locks.close()
  })

  it.each([undefined, null, {}, 'memory:'])('cannot be made of %s', (backend) => {
    expect(() => createLocks(backend as never)).toThrow(ConfigurationError)
  })

  it.each([99, Number.NaN, Infinity, '1000', null])('refuses a TTL of %s', (ttlMs) => {
    expect(make({ ttlMs })).toThrow(InvalidTtlError)
  })

  it.each([
    ['waitMs', [-1, Number.NaN, '5', null]],
    ['retryMs', [0, Number.NaN, Infinity, '5', null]],
    ['prefix', ['', 'a\nb', 'a\0', 'x'.repeat(129), 7, null, '\ud800']],
    ['owner', ['', 'a\nb', 'a\u001b[31m', 'x'.repeat(129), 7, null, '\ud800']],
  ] as [string, unknown[]][])('refuses a %s that makes no sense', (name, values) => {
    for (const value of values) {
      expect(make({ [name]: value }), String(value)).toThrow(ConfigurationError)
      expect(make({ [name]: value })).toThrow(name)
    }
  })

  const write = () => {}
  const badLoggers = [
    ['nothing', null],
    ['an empty object', {}],
    ['a name', 'console'],
    ['one that has no functions', { info: 1, warn: 1, error: 1 }],
    ['one without info', { warn: write, error: write }],
    ['one without warn', { info: write, error: write }],
    ['one without error', { info: write, warn: write }],
  ] as const
  it.each(badLoggers)('refuses %s as a logger: it could not write', (_, logger) => {
    // Otherwise the first lock ends the process: what a listener on a diagnostics channel throws is an uncaught exception.
    expect(make({ logger })).toThrow(ConfigurationError)
  })

  it('says what it was given, and whether that was a text', () => {
    expect(make({ ttlMs: '5000' })).toThrow('not the string "5000".')
    expect(make({ ttlMs: 0.5 })).toThrow('not 0.5.')
    expect(make({ retryMs: null })).toThrow('not null.')
  })

  it('refuses an option that there is not, as a lock does', () => {
    expect(make({ ttl: 5_000 })).toThrow(ConfigurationError)
    expect(make({ retryms: 5 })).toThrow(ConfigurationError)
  })

  it('touches no network when it is made', () => {
    const { manager, store, clock } = manualWorld()
    manager()
    expect(store.requests).toEqual([])
    expect(clock.pending()).toBe(0)
  })

  it('keeps its prefix apart from others', async () => {
    const { manager } = manualWorld()
    const [shop, depot, other] = [manager({ prefix: 'shop' }), manager({ prefix: 'depot' }), manager({ prefix: 'shop' })]
    await shop.lock('k')
    expect(await depot.tryLock('k')).not.toBeNull()
    expect(await other.tryLock('k')).toBeNull()
  })

  it('has the prefix `holdfast` by default', async () => {
    const { manager } = manualWorld()
    await manager().lock('k')
    expect(await manager({ prefix: 'holdfast' }).tryLock('k')).toBeNull()
  })
})

describe('the owner', () => {
  it('is host name and process id by default, with a unique suffix', () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    expect(a.owner).toMatch(/#[0-9a-f]{8}$/)
    expect(a.owner.split('#')[0]).toBe(`${hostname()}:${process.pid}`)
    expect(a.owner).not.toBe(b.owner)
  })

  it('is the given name with a unique suffix, also for two managers of the same name', () => {
    const { manager } = manualWorld()
    const [a, b] = [manager({ owner: 'worker.7' }), manager({ owner: 'worker.7' })]
    expect(a.owner).toMatch(/^worker\.7#[0-9a-f]{8}$/)
    expect(a.owner).not.toBe(b.owner)
  })

  it('is what others see', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager({ owner: 'worker 7' }), manager()]
    const lock = await a.lock('k')
    await expect(b.lock('k', { waitMs: 0 })).rejects.toThrow(a.owner)
    expect(lock.token.endsWith(`.${a.owner}`)).toBe(true)
  })
})
