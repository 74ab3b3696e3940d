import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import * as holdfast from '../../src/index.js'
import { manualWorld, watch } from '../support/manual-world.js'
import { outage } from '../support/faulty-backend.js'

const {
  BackendError, ConfigurationError, ConflictError, ConnectorError, HoldfastError, InvalidKeyError, InvalidTtlError,
  LockAlreadyHeldError,
  LockedError, LockNotAcquiredError, LockNotHeldError, LockReleasedError, ManagerClosedError, NoLeaderError, NotLeaderError,
  OwnershipLostError, SessionExpiredError,
} = holdfast

const TABLE: [make: () => holdfast.HoldfastError, code: string, status: number][] = [
  [() => new ConfigurationError('m'), 'CONFIGURATION', 500],
  [() => new ConnectorError('m'), 'CONNECTOR', 503],
  [() => new InvalidKeyError('m'), 'INVALID_KEY', 400],
  [() => new InvalidTtlError('m'), 'INVALID_TTL', 400],
  [() => new ManagerClosedError(), 'MANAGER_CLOSED', 503],
  [() => new BackendError('m', { transient: true }), 'BACKEND', 503],
  [() => new LockNotAcquiredError('k', 'm'), 'LOCK_NOT_ACQUIRED', 409],
  [() => new LockNotHeldError('k', 'm'), 'LOCK_NOT_HELD', 409],
  [() => new LockAlreadyHeldError('k'), 'LOCK_ALREADY_HELD', 409],
  [() => new OwnershipLostError('k', 'm'), 'OWNERSHIP_LOST', 409],
  [() => new LockedError('k', 'm'), 'LOCKED', 409],
  [() => new LockReleasedError('k', 'm'), 'LOCK_RELEASED', 409],
  [() => new SessionExpiredError('m'), 'SESSION_EXPIRED', 409],
  [() => new NotLeaderError('m'), 'NOT_LEADER', 409],
  [() => new NoLeaderError('m'), 'NO_LEADER', 409],
  [() => new ConflictError('m'), 'CONFLICT', 409],
]

describe('the table of errors', () => {
  it.each(TABLE.map(([make, code, status]) => [code, status, make] as const))('%s, %d', (code, status, make) => {
    const error = make()
    const { name } = error
    expect(error.code).toBe(code)
    expect(error.status).toBe(status)
    expect(error).toBeInstanceOf(HoldfastError)
    expect(error).toBeInstanceOf(Error)
    expect(name).toBe(error.constructor.name)
    expect(error.stack).toContain('errors.test.ts')
    expect(inspect(error)).toContain(name)
    expect(String(error)).toBe(`${name}: ${error.message}`)
  })

  it('has every error that the package exports, and no code twice', () => {
    const isError = (value: unknown) => typeof value === 'function' && value.prototype instanceof HoldfastError
    const exported = Object.values(holdfast).filter(isError)
    expect(new Set(TABLE.map(([make]) => make().constructor))).toEqual(new Set(exported))
    expect(new Set(TABLE.map(([, code]) => code)).size).toBe(TABLE.length)
  })

  it('has LockedError among those not acquired, and LockReleasedError among those not held, and nothing else related', () => {
    expect(new LockedError('k', 'm')).toBeInstanceOf(LockNotAcquiredError)
    expect(new LockReleasedError('k', 'm')).toBeInstanceOf(LockNotHeldError)
    for (const [make] of TABLE) {
      const error = make()
      expect(Object.getPrototypeOf(error.constructor), error.name).toBe(
        error instanceof LockedError ? LockNotAcquiredError : error instanceof LockReleasedError ? LockNotHeldError : HoldfastError,
      )
    }
  })

  it('gives the key on every error about one', () => {
    for (const error of [
      new LockNotAcquiredError('k', 'm'), new LockNotHeldError('k', 'm'), new LockAlreadyHeldError('k'),
      new OwnershipLostError('k', 'm'),
      new LockedError('k', 'm'), new LockReleasedError('k', 'm'),
    ]) expect(error.key).toBe('k')
  })

  it('keeps the cause, and whether it may be over in a moment', () => {
    const cause = new Error('ECONNRESET')
    expect(new BackendError('m', { cause, transient: true })).toMatchObject({ cause, transient: true })
    expect(new BackendError('m', { cause, transient: false })).toMatchObject({ cause, transient: false })
    expect(new ConnectorError('m', { cause }).cause).toBe(cause)
  })
})

describe('what a backend throws', () => {
  it('comes out as it is if it is one of ours', async () => {
    const { manager, store } = manualWorld()
    const error = new BackendError('READONLY', { transient: false })
    store.fail('claim', error)
    await expect(manager().lock('k')).rejects.toBe(error)
  })

  it('comes out as a BackendError with its cause if it is not', async () => {
    const { manager, store } = manualWorld()
    const cause = new TypeError('undefined is not a function')
    store.fail('claim', cause)
    await expect(manager().lock('k')).rejects.toMatchObject({ code: 'BACKEND', cause, transient: false })
  })

  it('is told with what keeps the store from being reached, if that is known and it does not answer', async () => {
    const { manager, store, clock } = manualWorld()
    store.trouble = new Error('connect ECONNREFUSED 127.0.0.1:6379')
    store.blackHole('claim')
    const waiting = watch(manager().tryLock('k'))
    await clock.advance(5_000)
    expect(waiting.error).toBeInstanceOf(BackendError)
    expect(waiting.error.message).toContain('ECONNREFUSED')
    expect(waiting.error.cause).toBe(store.trouble)
  })

  it('concerns one claim only, if the store says so', async () => {
    const { manager, store } = manualWorld()
    const error = new BackendError('WRONGTYPE', { transient: false })
    store.answer('claim', [{ status: 'failed', error }])
    await expect(manager().lock('k')).rejects.toBe(error)
  })

  it('never carries the token of the lock', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    store.fail('release')
    const error = await lock.release().catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(BackendError)
    expect(inspect(error, { depth: 10 })).not.toContain(lock.token.slice(0, 32))
  })
})

describe('a refusal', () => {
  it('names the holder, its age, what is left of its TTL, the queue and what to do', async () => {
    const { manager, clock } = manualWorld()
    const [a, b, c] = [manager({ owner: 'worker-a' }), manager(), manager()]
    await a.lock('order:42', { ttlMs: 30_000, autoRenew: false, type: 'report' })
    void b.lock('order:42').catch(() => {})
    void manager().lock('order:42').catch(() => {})
    await clock.advance(2_500)
    const error = await c.lock('order:42', { waitMs: 0 }).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(LockNotAcquiredError)
    expect((error as Error).message).toBe(
      `Lock not acquired: "order:42" is held by ${a.owner} for 2.5 s with 27.5 s of its TTL left (report); 2 wait. `
        + 'Pass waitMs to wait for it.',
    )
    expect(error).toMatchObject({
      key: 'order:42',
      code: 'LOCK_NOT_ACQUIRED',
      status: 409,
      blocker: { holder: { owner: a.owner, heldForMs: 2_500, expiresInMs: 27_500 }, waiting: 2 },
    })
  })

  it('says how long was waited', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 60_000 })
    const waiting = b.lock('k', { waitMs: 1_500 }).catch((thrown: unknown) => thrown)
    await clock.advance(1_500)
    const { message } = (await waiting) as Error
    expect(message).toMatch(/^Lock not acquired: "k" is held by .*; nobody else waits\. Waited 1\.5 s\. Raise waitMs, or see/)
  })

  it('tells one that waits from several', async () => {
    const { manager, clock } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    await a.lock('k')
    void b.lock('k').catch(() => {})
    await clock.advance(0)
    await expect(c.lock('k', { waitMs: 0 })).rejects.toThrow('; 1 waits.')
  })

  it('says so if this process itself holds the key, and what to do about it', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow(`held by this process (${locks.owner})`)
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow('Release it first, or ask from inside the withLock callback')
  })

  it('says so after a wait too', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    const waiting = locks.lock('k', { waitMs: 100 }).catch((thrown: unknown) => thrown)
    await clock.advance(100)
    expect(((await waiting) as Error).message).toContain('held by this process')
  })

  it('does not mistake another manager of the same name for this process', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager({ owner: 'twin' }), manager({ owner: 'twin' })]
    await a.lock('k')
    await expect(b.lock('k', { waitMs: 0 })).rejects.not.toThrow('this process')
  })

  it('knows an outsider, a holder without expiry, and a key that is free but promised', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const refuse = (holder: object | undefined, waiting = 0) =>
      store.answer('claim', [{ status: 'refused', holder, ahead: waiting, waiting }])
    refuse({ owner: undefined, heldForMs: undefined, expiresInMs: 900 })
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow(
      'Lock not acquired: "k" is held by another client with 900 ms of its TTL left; nobody else waits. Pass waitMs to wait for it.',
    )
    refuse({ owner: undefined, heldForMs: undefined, expiresInMs: undefined })
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow('"k" is held by another client without expiry; nobody else waits.')
    refuse(undefined, 3)
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow('"k" is free, but others are first; 3 wait.')
  })

  it('is not made of a store that did not answer within waitMs: that is a BackendError, for tryLock too', async () => {
    const { manager, store, clock } = manualWorld()
    store.blackHole('claim')
    const locks = manager()
    const calls = [locks.lock('k', { waitMs: 200 }), locks.tryLock('k', { waitMs: 200 })]
      .map((call) => call.catch((thrown: unknown) => thrown))
    await clock.advance(200)
    for (const call of calls) {
      const error = (await call) as Error
      expect(error).toBeInstanceOf(BackendError)
      expect(error.message).toBe('No answer from memory within 200 ms.')
    }
  })

  it('is not made of a store that failed: that is a BackendError', async () => {
    const { manager, store, clock } = manualWorld()
    const error = outage()
    store.fail('claim', error, { times: Infinity })
    const locks = manager()
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toBe(error)
    await expect(locks.tryLock('k')).rejects.toBe(error)
    const waiting = locks.lock('k', { waitMs: 300 }).catch((thrown: unknown) => thrown)
    await clock.advance(300)
    expect(await waiting).toBe(error)
  })
})
