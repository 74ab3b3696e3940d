import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { createLocks, ManagerClosedError, Mutex, SessionExpiredError, type LockManager } from '../../src/index.js'
import { Session } from '../../src/primitives/session.js'

async function keysHeld(locks: LockManager): Promise<string[]> {
  const keys = []
  for await (const { key } of locks.inspect()) keys.push(key)
  return keys
}

describe('a session', () => {
  it('whose manager closes leaves nothing behind', async () => {
    const backend = memoryBackend()
    const [a, b] = [createLocks(backend), createLocks(backend)]
    const session = await a.session()
    const mutex = new Mutex(session, 'x')
    await mutex.lock()
    const { signal } = mutex
    await a.close()
    await session.done
    expect(signal.reason).toBeInstanceOf(ManagerClosedError)
    expect(session.signal.reason).toBeInstanceOf(ManagerClosedError)
    expect(await keysHeld(b)).toEqual([])
    await b.close()
  })

  it('forgets what nobody has any more', async () => {
    const locks = createLocks(memoryBackend())
    const session = await locks.session()
    const mutex = new Mutex(session, 'x')
    await mutex.lock()
    const held = Session.member(session, 'x/')
    expect(Session.member(session, 'x/') === held).toBe(true)
    await mutex.unlock()
    expect(Session.member(session, 'x/') === held).toBe(false)
    await locks.close()
  })

  it('still knows one who asks while another lets go', async () => {
    const locks = createLocks(memoryBackend())
    const session = await locks.session()
    const [one, other] = [new Mutex(session, 'x'), new Mutex(session, 'x')]
    for (let i = 0; i < 3; i++) {
      await one.lock()
      const released = one.unlock()
      // Comes while the release is on its way, and has to be the one that the next finds.
      await Promise.all([released, other.lock()])
      await one.lock()
      expect(one.rev).toBe(other.rev)
      await one.unlock()
    }
    await session.close()
    await locks.close()
  })

  it('that is orphaned leaves what it has to expire, and tells those who wait', async () => {
    const backend = memoryBackend()
    const [a, b] = [createLocks(backend), createLocks(backend)]
    const session = await a.session({ ttlMs: 300 })
    const mutex = new Mutex(session, 'x')
    await mutex.lock()
    const other = await b.session()
    const theirs = new Mutex(other, 'x')
    const waiting = theirs.lock()
    await session.orphan()
    expect(mutex.signal.reason).toBeInstanceOf(SessionExpiredError)
    await sleep(50)
    expect(await keysHeld(b)).toContain('x/')
    await waiting
    expect(theirs.fence).toBeGreaterThan(mutex.fence)
    await Promise.all([a.close(), b.close()])
  })
})
