/** Locks on etcd when a request or an answer is lost, or carried out long after nobody expects it any more: single stories. */
import { describe, expect, it } from 'vitest'
import { statusError } from '../../src/backends/etcd/client/errors.js'
import type { RequestOp, TxnRequest } from '../../src/backends/etcd/client/messages.js'
import { EtcdBackend } from '../../src/backends/etcd/backend.js'
import { writeValue } from '../../src/backends/etcd/claim-value.js'
import type { Claim, WakeUp } from '../../src/core/backend.js'
import { Election, Mutex, type DistributedLock, type Session } from '../../src/index.js'
import { MadeUpClient, writesOf, type Fate } from '../support/made-up-etcd.js'
import { isHeld, MadeUpWorld, type MadeUpProcess } from '../support/made-up-world.js'
import { watch } from '../support/manual-world.js'

const STEP_MS = 10

/** What becomes of the next Txn that puts a key with this in its name; all others go well. */
function once({ client }: MadeUpProcess, fate: Fate, part: string): void {
  let isDone = false
  client.fateOf = (_, request) => {
    if (isDone || !puts(request, part)) return 'well'
    isDone = true
    return fate
  }
}

/** The next that only reads a line, or says that what was asked for is void, takes so long to get there. */
function delayNextLook({ client }: MadeUpProcess, lateMs: number): { readonly isSent: boolean } {
  const { fateOf, latencyMs } = client
  const look = { isSent: false }
  client.fateOf = (call, request) => {
    const isLook = /^(put,)?range$/.test(request?.success?.map(({ kind }) => kind).join() ?? '')
    if (isLook && !look.isSent) {
      look.isSent = true
      client.latencyMs = () => {
        client.latencyMs = latencyMs
        return lateMs
      }
    }
    return fateOf(call, request)
  }
  return look
}

function puts(request: TxnRequest | undefined, part: string): boolean {
  return request !== undefined && writesOf(request).some((write) => write.startsWith('put ') && write.includes(part))
}

/** For how long, of the time that passes, both hold. */
async function bothHoldMs({ clock }: MadeUpWorld, forMs: number, holds: () => readonly boolean[]): Promise<number> {
  let bothMs = 0
  for (let ms = 0; ms < forMs; ms += STEP_MS) {
    await clock.advance(STEP_MS)
    if (holds().filter(Boolean).length > 1) bothMs += STEP_MS
  }
  return bothMs
}

/** Another process waits for what is held: nobody is to hold it with it. Then it is released, and the other one has it. */
async function expectAlone(world: MadeUpWorld, lock: DistributedLock, forMs: number): Promise<void> {
  const other = watch(world.process('other').locks.lock(lock.key))
  const otherHolds = () => other.value !== undefined && isHeld(other.value)
  expect(await bothHoldMs(world, forMs, () => [isHeld(lock), otherHolds()])).toBe(0)
  lock.assertHeld()
  expect(await world.soon(lock.release())).toBe(true)
  await world.clock.advance(100)
  expect(otherHolds()).toBe(true)
  expect(other.value!.fence).toBeGreaterThan(lock.fence)
}

describe('an extension', () => {
  it('whose answer is lost lets nobody else in, and the lock stays held', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    once(holder, 'answer lost', '/k/')
    await world.soon(lock.extend(30_000)).catch(() => {})
    await expectAlone(world, lock, 90_000)
  })

  it.each<Fate>(['answer lost', 'request lost', 'not sent', 'late'])('can be tried again: %s', async (fate) => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    once(holder, fate, '/k/')
    await world.soon(lock.extend(30_000)).catch(() => {})
    await world.soon(lock.extend(30_000))
    expect(lock.remainingMs).toBeGreaterThan(29_000)
    await expectAlone(world, lock, 90_000)
  })

  it('to one TTL that comes late, after one to another, takes nothing away', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    once(holder, 'late', '/k/')
    await world.soon(lock.extend(20_000)).catch(() => {})
    await world.soon(lock.extend(40_000))
    expect(lock.remainingMs).toBeGreaterThan(39_000)
    await expectAlone(world, lock, 90_000)
  })

  it.each([2_100, 2_600, 5_000])('of what was asked for twice is not undone by the first, %i ms late', async (lateMs) => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    holder.client.lateMs = () => lateMs
    once(holder, 'late', '/k/')
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    await world.soon(lock.extend(60_000))
    await expectAlone(world, lock, 90_000)
  })
})

describe('an extension while an answer to an earlier question is on its way', () => {
  it('is not undone by it', async () => {
    const world = new MadeUpWorld()
    const [first, second] = [world.process('first'), world.process('second')]
    const before = await world.soon(first.locks.lock('k'))
    const waiting = watch(second.locks.lock('k', { ttlMs: 2_000 }))
    // It asks again when the first could have expired. That takes a while; to be told does not.
    const look = delayNextLook(second, 20)
    while (!look.isSent) await world.clock.advance(1)
    before.release().catch(() => {})
    while (waiting.state === 'pending') await world.clock.advance(0.5)
    const lock = waiting.value!
    await world.soon(lock.extend(20_000))
    await world.clock.advance(500)
    expect(lock.remainingMs).toBeGreaterThan(19_000)
    await expectAlone(world, lock, 60_000)
  })
})

describe('an extension to where the lease cannot be renewed', () => {
  it.each([3_000, 12_000])('lets nobody else in: %i ms', async (ttlMs) => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 30_000 }))
    const neighbour = await world.soon(holder.locks.lock('neighbour', { ttlMs }))
    const other = watch(world.process('other').locks.lock('k'))
    await world.clock.advance(500)
    // The connection of renewals and watches hangs, and the other does not.
    holder.client.fateOf = (call) => (call === 'keepAlive' ? 'not sent' : 'well')
    holder.client.cutOff(60_000)
    const otherHolds = () => other.value !== undefined && isHeld(other.value)
    const holds = () => [isHeld(lock), otherHolds()]
    expect(await bothHoldMs(world, ttlMs, holds)).toBe(0)
    lock.extend(ttlMs).catch(() => {})
    expect(await bothHoldMs(world, 60_000, holds)).toBe(0)
    expect([isHeld(neighbour), ...holds()]).toEqual([false, false, true])
  })
})

describe('an adoption', () => {
  it.each<Fate>(['answer lost', 'request lost', 'not sent', 'late'])('can be tried again: %s', async (fate) => {
    const world = new MadeUpWorld()
    const [from, to] = [world.process('from'), world.process('to')]
    const lock = await world.soon(from.locks.lock('k', { ttlMs: 30_000 }))
    const text = lock.transfer()
    once(to, fate, '/k/')
    await expect(world.soon(to.locks.adopt(text))).rejects.toThrow('has not answered')
    const adopted = await world.soon(to.locks.adopt(text))
    expect(adopted.fence).toBe(lock.fence + 1n)
    await expectAlone(world, adopted, 90_000)
    await world.clock.advance(15_000)
  })
})

describe('a revocation', () => {
  const MARK = '"revoked"'

  it.each([1, 2, 3, 4])('is told at the next renewal, if whoever revokes dies before transaction %i', async (last) => {
    const world = new MadeUpWorld()
    const [holder, revoker] = [world.process('holder'), world.process('revoker')]
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    await world.clock.advance(500)
    let txns = 0
    let isDead = false
    revoker.client.fateOf = (call) => {
      if (call === 'txn' && ++txns === last) isDead = true
      return isDead ? 'request lost' : 'well'
    }
    await world.soon(revoker.locks.forceRelease('k')).catch(() => {})
    const { kvs } = world.etcd.range({ key: 'holdfast/k/', rangeEnd: 'holdfast/k0' })
    const isRevoked = kvs.every(({ value }) => value.includes(MARK))
    await world.clock.advance(10_000)
    // Either nothing has come of it, or the holder has been told, and has let go.
    expect(isHeld(lock)).toBe(!isRevoked)
    expect(world.etcd.keys.filter((key) => key.includes('/k/'))).toHaveLength(isRevoked ? 0 : 1)
  })

  it.each<Fate>(['answer lost', 'request lost', 'not sent', 'late'])('can be tried again: %s', async (fate) => {
    const world = new MadeUpWorld()
    const [holder, revoker] = [world.process('holder'), world.process('revoker')]
    const lock = await world.soon(holder.locks.lock('k', { ttlMs: 10_000 }))
    once(revoker, fate, '/k/')
    await world.soon(revoker.locks.forceRelease('k')).catch(() => {})
    await world.soon(revoker.locks.forceRelease('k'))
    await world.clock.advance(10_000)
    expect(isHeld(lock)).toBe(false)
    expect(world.etcd.keys.filter((key) => key.includes('/k/'))).toEqual([])
  })
})

describe('what a session has', () => {
  /** So long after a request was given up nobody expects it any more. */
  const LATEST_MS = 25_000

  it.each([['orphaned', 100], ['taken up long after', LATEST_MS]])('is not deleted by who had asked for it in vain, before it was %s', async (how, afterMs) => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    before.client.fateOf = (_, request) => (puts(request, 'm/') ? 'request lost' : 'well')
    const leaving = new AbortController()
    const left = watch(new Mutex(session, 'm').lock({ signal: leaving.signal }))
    await world.clock.advance(500)
    leaving.abort(new Error('no longer wanted'))
    await world.clock.advance(6_000)
    expect(left.state).toBe('rejected')
    before.client.fateOf = () => 'well'
    if (how === 'orphaned') await world.soon(session.orphan())
    await world.clock.advance(afterMs)

    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    await world.soon(mutex.lock())
    const others = new Mutex(await world.soon(other.locks.session({ ttlMs: 9_000 })), 'm')
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 60_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
    await world.soon(mutex.unlock())
    await world.clock.advance(100)
    expect(theirs.state).toBe('resolved')
  })

  it('is not deleted by who has orphaned it, and looked for what was left of an attempt', async () => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    once(before, 'request lost', 'm/')
    const look = delayNextLook(before, 500)
    await expect(world.soon(new Mutex(session, 'm').tryLock())).rejects.toThrow('has not answered')
    while (!look.isSent) await world.clock.advance(1)
    await world.soon(session.orphan())

    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    await world.soon(mutex.lock())
    const theirs = watch(new Mutex(await world.soon(other.locks.session()), 'm').lock())
    expect(await bothHoldMs(world, 10_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
  })
})

describe('a mutex that was lost while its session goes on', () => {
  /** Its key has to be looked at, and cannot be; the lease is renewed on the stream. */
  async function lose({ clock }: MadeUpWorld, { client }: MadeUpProcess, mutex: Mutex): Promise<void> {
    client.loseWatches()
    client.fateOf = (call) => (call === 'txn' ? 'request lost' : 'well')
    while (!mutex.signal.aborted) await clock.advance(100)
    client.fateOf = () => 'well'
  }

  it('is another for the next who locks it, behind those who have waited', async () => {
    const world = new MadeUpWorld()
    const [holder, other] = [world.process('holder'), world.process('other')]
    const session = await world.soon(holder.locks.session({ ttlMs: 9_000 }))
    const mutex = new Mutex(session, 'm')
    await world.soon(mutex.lock())
    for (let round = 0; round < 2; round++) {
      const { fence } = mutex
      const others = new Mutex(await world.soon(other.locks.session({ ttlMs: 9_000 })), 'm')
      const theirs = watch(others.lock())
      await world.clock.advance(100)
      await lose(world, holder, mutex)
      expect(session.signal.aborted).toBe(false)
      const ours = watch(mutex.lock())
      await world.clock.advance(3_000)
      expect([theirs.state, ours.state]).toEqual(['resolved', 'pending'])
      expect(others.fence).toBeGreaterThan(fence)
      await world.soon(others.unlock())
      await world.clock.advance(500)
      expect(ours.state).toBe('resolved')
      expect(mutex.fence).toBeGreaterThan(others.fence)
    }
  })

  it('is in nobody’s way', async () => {
    const world = new MadeUpWorld()
    const [holder, other] = [world.process('holder'), world.process('other')]
    const session = await world.soon(holder.locks.session({ ttlMs: 9_000 }))
    const mutex = new Mutex(session, 'm')
    await world.soon(mutex.lock())
    const theirs = watch(new Mutex(await world.soon(other.locks.session()), 'm').lock())
    await lose(world, holder, mutex)
    await world.clock.advance(2_000)
    expect([theirs.state, session.signal.aborted]).toEqual(['resolved', false])
  })

  it('is another also if one who had it before unlocks it in between', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const session = await world.soon(holder.locks.session({ ttlMs: 9_000 }))
    const [first, second] = [new Mutex(session, 'm'), new Mutex(session, 'm')]
    await world.soon(first.lock())
    await lose(world, holder, first)
    await world.soon(second.lock())
    const { fence } = second
    await lose(world, holder, second)
    await expect(world.soon(first.unlock())).rejects.toThrow()
    await world.soon(second.lock())
    expect(second.fence).toBeGreaterThan(fence)
  })

  it('is another also if its last request is not answered yet', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const session = await world.soon(holder.locks.session({ ttlMs: 9_000 }))
    const other = new Mutex(await world.soon(world.process('other').locks.session()), 'm')
    await world.soon(other.lock())
    const mutex = new Mutex(session, 'm')
    const ours = watch(mutex.lock())
    await world.clock.advance(100)
    // It asks again when the stream is there again; and is granted what it waits for by the watch.
    const look = delayNextLook(holder, 60_000)
    holder.client.loseWatches()
    while (!look.isSent) await world.clock.advance(10)
    await world.soon(other.unlock())
    while (ours.state === 'pending') await world.clock.advance(10)
    const { fence } = mutex
    await lose(world, holder, mutex)
    await world.soon(mutex.lock())
    expect(mutex.fence).toBeGreaterThan(fence)
  })
})

describe('a session that is taken up', () => {
  it('goes on in its process if that fails', async () => {
    const world = new MadeUpWorld()
    const [before, after] = [world.process('before'), world.process('after')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    const mutex = new Mutex(session, 'm')
    await world.soon(mutex.lock())
    after.client.fateOf = (call) => (call === 'leaseGrant' ? 'request lost' : 'well')
    const taking = watch(after.locks.session({ lease: session.lease }))
    await world.clock.advance(7_000)
    expect(taking.state).toBe('rejected')
    after.client.fateOf = () => 'well'
    await world.clock.advance(3_000)
    expect([session.signal.aborted, mutex.signal.aborted]).toEqual([false, false])
    expect(world.etcd.keys).toContain(mutex.key)
  })
})

describe('what a session has let go of', () => {
  it.each([9_000, 120_000])('is not in the way of others when the first request for it is carried out at last: TTL %d', async (ttlMs) => {
    const world = new MadeUpWorld()
    const [holder, other] = [world.process('holder'), world.process('other')]
    const session = await world.soon(holder.locks.session({ ttlMs }))
    once(holder, 'late', 'm/')
    const mutex = new Mutex(session, 'm')
    await world.soon(mutex.lock())
    await world.soon(mutex.unlock())
    expect(world.etcd.keys).not.toContain(mutex.key)
    await world.clock.advance(15_000)
    expect(world.etcd.keys).not.toContain(mutex.key)
    await world.soon(new Mutex(await world.soon(other.locks.session()), 'm').lock())
    expect(session.signal.aborted).toBe(false)
  })

  it('is not deleted once more when it is locked again', async () => {
    const world = new MadeUpWorld()
    const [holder, other] = [world.process('holder'), world.process('other')]
    const session = await world.soon(holder.locks.session({ ttlMs: 9_000 }))
    holder.client.lateMs = () => 3_000
    once(holder, 'late', 'm/')
    const [mutex, others] = [new Mutex(session, 'm'), new Mutex(await world.soon(other.locks.session()), 'm')]
    await expect(world.soon(mutex.tryLock())).rejects.toThrow('has not answered')
    // Whatever would delete it is late, too.
    let isDeleting = false
    holder.client.fateOf = (_, request) => {
      const deletes = request !== undefined && writesOf(request).some((write) => write.startsWith('delete m/'))
      isDeleting ||= deletes
      return deletes ? 'late' : 'well'
    }
    for (let ms = 0; ms < 10_000 && !isDeleting; ms += STEP_MS) await world.clock.advance(STEP_MS)
    await world.soon(mutex.lock())
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 12_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
  })

  it('leaves nothing behind when it was not sent yet, as another of the process was to be answered first', async () => {
    const world = new MadeUpWorld()
    const [before, after] = [world.process('before'), world.process('after')]
    const [first, second] = [await world.soon(before.locks.session({ ttlMs: 9_000 })), await world.soon(before.locks.session({ ttlMs: 9_000 }))]
    once(before, 'request lost', 'm/')
    const waits = [first, second].map((session) => watch(new Mutex(session, 'm').lock()))
    await world.clock.advance(200)
    await world.soon(second.orphan())
    await world.soon(after.locks.session({ lease: second.lease }))
    await world.clock.advance(5_000)
    expect(waits.map(({ state }) => state)).toEqual(['resolved', 'rejected'])
    expect(world.etcd.keys.filter((key) => key.startsWith('m/'))).toEqual([`m/${first.lease.toString(16)}`])
  })

  it('by orphaning it leaves nothing behind, however late that comes', async () => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    before.client.lateMs = () => 10_000
    once(before, 'late', 'm/')
    watch(new Mutex(session, 'm').lock())
    await world.clock.advance(500)
    await world.soon(session.orphan())
    const again = await world.soon(after.locks.session({ lease: session.lease }))
    await world.clock.advance(30_000)
    await world.soon(new Mutex(await world.soon(other.locks.session()), 'm').lock())
    expect(again.signal.aborted).toBe(false)
  })
})

describe('who gives up, and locks again at once', () => {
  /** A mutex of a session that lives long without being asked for, and one of another process. */
  async function twoMutexes(world: MadeUpWorld, holder: MadeUpProcess, prefix = 'm'): Promise<{ mutex: Mutex; others: Mutex; theirs: Session }> {
    const mutex = new Mutex(await world.soon(holder.locks.session({ ttlMs: 60_000 })), prefix)
    const theirs = await world.soon(world.process('other').locks.session({ ttlMs: 60_000 }))
    return { mutex, others: new Mutex(theirs, prefix), theirs }
  }

  /** The answer to what is sent now takes so long; all else is as fast as ever. */
  function delayAnswer({ client }: MadeUpProcess, ms: number): void {
    let count = 0
    client.latencyMs = () => (++count === 2 ? ms : 1)
  }

  async function gaveUp(world: MadeUpWorld, mutex: Mutex, controller: AbortController): Promise<{ readonly state: string }> {
    controller.abort(new Error('no more'))
    await world.clock.advance(1)
    return watch(mutex.lock())
  }

  it.each<Fate>(['request lost', 'answer lost'])('has it alone, also if the former attempt was being asked for once more: %s', async (fate) => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const { mutex, others } = await twoMutexes(world, holder)
    const controller = new AbortController()
    let asked = 0
    holder.client.latencyMs = () => 50
    holder.client.fateOf = (_, request) => (puts(request, 'm/') && asked++ === 0 ? fate : 'well')
    mutex.lock({ signal: controller.signal }).catch(() => {})
    while (asked < 2) await world.clock.advance(1)
    const ours = await gaveUp(world, mutex, controller)
    while (ours.state === 'pending') await world.clock.advance(1)
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
  })

  it.each([30, 150])('keeps its place, also if the former attempt was just looking again: %d ms away', async (latencyMs) => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const { mutex, others } = await twoMutexes(world, holder)
    await world.soon(others.lock())
    const controller = new AbortController()
    mutex.lock({ signal: controller.signal }).catch(() => {})
    await world.clock.advance(300)
    holder.client.latencyMs = () => latencyMs
    const look = delayNextLook(holder, latencyMs)
    holder.client.loseWatches()
    while (!look.isSent) await world.clock.advance(1)
    const ours = await gaveUp(world, mutex, controller)
    await world.clock.advance(3_000)
    await world.soon(others.unlock())
    await world.clock.advance(3_000)
    expect(ours.state).toBe('resolved')
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
  })

  it('has it alone, also if the former attempt is answered when it holds', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const { mutex, others } = await twoMutexes(world, holder)
    await world.soon(others.lock())
    const controller = new AbortController()
    mutex.lock({ signal: controller.signal }).catch(() => {})
    await world.clock.advance(300)
    let isAsked = false
    holder.client.fateOf = (_, request) => {
      if (!isAsked && request?.success?.map(({ kind }) => kind).join() === 'range') {
        isAsked = true
        delayAnswer(holder, 500)
      }
      return 'well'
    }
    // It looks again when the TTL of who is in its way might be over.
    while (!isAsked) await world.clock.advance(1)
    controller.abort(new Error('no more'))
    await world.clock.advance(3)
    await world.soon(others.unlock())
    await world.soon(mutex.lock())
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
  })

  it('has it alone, also if the former attempt had to read what was in its way', async () => {
    const world = new MadeUpWorld()
    const holder = world.process('holder')
    const { mutex, others, theirs: session } = await twoMutexes(world, holder)
    // What is further down is in nobody's way, but makes it seem so.
    await world.soon(new Mutex(session, 'm/below').lock())
    const range = holder.client.range.bind(holder.client)
    let isRead = false
    holder.client.range = (request) => {
      if (!isRead) delayAnswer(holder, 300)
      isRead = true
      return range(request)
    }
    const controller = new AbortController()
    mutex.tryLock({ signal: controller.signal }).catch(() => {})
    while (!isRead) await world.clock.advance(1)
    await world.clock.advance(3)
    const ours = await gaveUp(world, mutex, controller)
    while (ours.state === 'pending') await world.clock.advance(1)
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
  })
})

describe('where there is no space', () => {
  function useUp({ etcd }: MadeUpWorld): void {
    const txn = etcd.txn.bind(etcd)
    etcd.txn = (request) => {
      if (writesOf(request).some((write) => write.startsWith('put '))) throw statusError(8, 'etcdserver: mvcc: database space exceeded')
      return txn(request)
    }
  }

  it('what a session has can be taken up', async () => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    const given = new Mutex(session, 'm')
    await world.soon(given.lock())
    const theirs = watch(new Mutex(await world.soon(other.locks.session({ ttlMs: 9_000 })), 'm').lock())
    await world.soon(session.orphan())
    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    const txn = world.etcd.txn.bind(world.etcd)
    // As later versions do it, which look into what is within a transaction; but only what is to be written as it is.
    const leavesValue = (ops: readonly RequestOp[] = []): boolean => ops.some((op) => (op.kind === 'txn' ? leavesValue(op.success) : op.kind === 'put' && op.ignoreValue))
    world.etcd.txn = (request) => {
      if (leavesValue(request.success)) throw statusError(8, 'etcdserver: mvcc: database space exceeded')
      return txn(request)
    }
    await world.soon(mutex.lock())
    expect(mutex.fence).toBe(given.fence)
    useUp(world)
    await world.soon(mutex.unlock())
    await world.clock.advance(1_000)
    expect(theirs.state).toBe('resolved')
  })

  it('a mutex can be unlocked, also one that had to be asked for twice', async () => {
    const world = new MadeUpWorld()
    const [holder, other] = [world.process('holder'), world.process('other')]
    const mutex = new Mutex(await world.soon(holder.locks.session({ ttlMs: 9_000 })), 'm')
    once(holder, 'answer lost', 'm/')
    await world.soon(mutex.lock())
    const theirs = watch(new Mutex(await world.soon(other.locks.session({ ttlMs: 9_000 })), 'm').lock())
    await world.clock.advance(100)
    useUp(world)
    await world.soon(mutex.unlock())
    await world.clock.advance(1_000)
    expect(theirs.state).toBe('resolved')
  })
})

describe('what a session had when it was orphaned', () => {
  it('does not come back after who has taken it up has let go of it', async () => {
    const world = new MadeUpWorld()
    const [before, after] = [world.process('before'), world.process('after')]
    const session = await world.soon(before.locks.session({ ttlMs: 9_000 }))
    before.client.lateMs = () => 10_000
    once(before, 'late', 'm/')
    await world.soon(new Mutex(session, 'm').lock())
    await world.soon(session.orphan())
    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    await world.soon(mutex.lock())
    await world.soon(mutex.unlock())
    await world.clock.advance(15_000)
    expect(world.etcd.keys).not.toContain(mutex.key)
  })
})

describe('one of several slots', () => {
  it('is not let go of by an answer that was on its way when it was granted', async () => {
    const world = new MadeUpWorld()
    const { clock } = world
    const granted: string[] = []
    const open = (name: string) => {
      const client = new MadeUpClient(world.etcd, name)
      const wake = (wakeUp: WakeUp) => void (wakeUp.kind === 'granted' && granted.push(wakeUp.claimId))
      return { client, backend: new EtcdBackend(client, { prefix: 'p', owner: name, clock, retryMs: 50, wake, warn() {} }) }
    }
    const claim = (id: string): Claim => ({ id, resource: 'k', take: 1, limit: 2, ttlMs: 9_000 })
    const [first, other, last] = [open('first'), open('other'), open('last')]
    await world.soon(first.backend.claim([claim('a')], 'queue'))
    // What it watches here is watched for a while longer.
    await world.soon(other.backend.claim([claim('b')], 'queue'))
    await world.soon(last.backend.claim([claim('c')], 'queue'))
    await world.soon(last.backend.release([claim('c')]))
    await world.soon(other.backend.release([claim('b')]))
    await clock.advance(100)
    last.client.latencyMs = () => 20
    const answer = watch(last.backend.claim([claim('d')], 'leave'))
    await clock.advance(30)
    other.backend.claim([claim('e')], 'queue').catch(() => {})
    await clock.advance(71)
    last.client.latencyMs = () => 1
    await world.soon(first.backend.release([claim('a')]))
    await clock.advance(100)
    expect(granted).toContain('d')
    expect(answer.value?.[0]).toMatchObject({ status: 'held' })
    expect(world.etcd.keys.filter((key) => key.startsWith('p/k/'))).toHaveLength(2)
  })
})

describe('who waits behind an outsider', () => {
  it('has its place for as long as it waits, also if it had to ask for it again and again', async () => {
    const world = new MadeUpWorld()
    const { client, locks } = world.process('waiter', { ttlMs: 3_000 })
    const inLine = () => world.etcd.keys.filter((key) => key.startsWith('holdfast/k/'))
    world.etcd.txn({ success: [{ kind: 'put', key: Buffer.from('holdfast/k/outsider') }] })
    const waits = [1, 2, 3].map(() => watch(locks.lock('k', { fairness: 'strict' })))
    await world.clock.advance(500)
    expect(inLine()).toHaveLength(4)
    client.fateOf = (call) => (call === 'txn' ? 'request lost' : 'well')
    const success = inLine().filter((key) => !key.includes('outsider')).map((key) => ({ kind: 'delete', key: Buffer.from(key) }) as const)
    world.etcd.txn({ success })
    await world.clock.advance(7_000)
    client.fateOf = () => 'well'
    for (let ms = 0; ms < 12_000; ms += 1_000) {
      await world.clock.advance(1_000)
      if (ms > 3_000) expect(inLine(), `${ms} ms`).toHaveLength(4)
    }
    expect(waits.map(({ state }) => state)).toEqual(['pending', 'pending', 'pending'])
  })
})

describe('what a watch tells too late', () => {
  it('is found out by who waits, also behind an outsider of whom nobody knows how long it may hold', async () => {
    const world = new MadeUpWorld()
    const { client, locks } = world.process('waiter')
    const outsider = Buffer.from('holdfast/k/outsider')
    world.etcd.txn({ success: [{ kind: 'put', key: outsider }] })
    const wait = watch(locks.lock('k'))
    await world.clock.advance(10_000)
    expect(wait.state).toBe('pending')
    const { latencyMs } = client
    client.latencyMs = () => 3_600_000
    world.etcd.txn({ success: [{ kind: 'delete', key: outsider }] })
    client.latencyMs = latencyMs
    await world.clock.advance(31_000)
    expect(wait.state).toBe('resolved')
  })
})

describe('what a process has given to itself', () => {
  it('can be adopted also at the second try', async () => {
    const world = new MadeUpWorld()
    const process = world.process('one')
    const adopted = await world.soon(process.locks.adopt((await world.soon(process.locks.lock('k', { ttlMs: 15_000 }))).transfer()))
    await world.clock.advance(60_000)
    once(process, 'request lost', 'k/')
    const given = adopted.transfer()
    await expect(world.soon(process.locks.adopt(given))).rejects.toThrow('has not answered')
    await world.clock.advance(6_000)
    expect(isHeld(await world.soon(process.locks.adopt(given)))).toBe(true)
  })
})

describe('what a session waited for when it was orphaned', () => {
  it('is not deleted under who has taken it up by who has let go of it, however late that comes', async () => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const others = new Mutex(await world.soon(other.locks.session({ ttlMs: 60_000 })), 'm')
    await world.soon(others.lock())
    const session = await world.soon(before.locks.session({ ttlMs: 60_000 }))
    watch(new Mutex(session, 'm').lock())
    await world.clock.advance(100)
    before.client.lateMs = () => 5_000
    before.client.fateOf = (_, request) => (request && writesOf(request).some((write) => write.startsWith('delete m/')) ? 'late' : 'well')
    await world.soon(session.orphan())
    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    const ours = watch(mutex.lock())
    await world.clock.advance(500)
    await world.soon(others.unlock())
    await world.clock.advance(500)
    expect(ours.state).toBe('resolved')
    const theirs = watch(others.lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
    await world.soon(mutex.unlock())
    await world.clock.advance(500)
    expect(theirs.state).toBe('resolved')
  })
})

describe('what a session was unlocking when it was orphaned', () => {
  it('is not deleted under who has taken it up, however late that comes', async () => {
    const world = new MadeUpWorld()
    const [before, after, other] = [world.process('before'), world.process('after'), world.process('other')]
    const session = await world.soon(before.locks.session({ ttlMs: 60_000 }))
    const given = new Mutex(session, 'm')
    await world.soon(given.lock())
    before.client.lateMs = () => 5_000
    before.client.fateOf = (_, request) => (request && writesOf(request).some((write) => write.startsWith('delete m/')) ? 'late' : 'well')
    given.unlock().catch(() => {})
    await world.clock.advance(10)
    await world.soon(session.orphan())
    const mutex = new Mutex(await world.soon(after.locks.session({ lease: session.lease })), 'm')
    await world.soon(mutex.lock())
    const theirs = watch(new Mutex(await world.soon(other.locks.session()), 'm').lock())
    expect(await bothHoldMs(world, 30_000, () => [!mutex.signal.aborted, theirs.state === 'resolved'])).toBe(0)
    expect(mutex.signal.aborted).toBe(false)
    await world.soon(mutex.unlock())
    await world.clock.advance(500)
    expect(theirs.state).toBe('resolved')
  })
})

describe('a session that two processes have', () => {
  it('tells who waits that it waits no more, also when the other has asked anew since', async () => {
    const world = new MadeUpWorld()
    const [one, two, other] = [world.process('one'), world.process('two'), world.process('other')]
    const session = await world.soon(one.locks.session({ ttlMs: 9_000 }))
    const [first, second] = [new Mutex(session, 'm'), new Mutex(await world.soon(two.locks.session({ lease: session.lease })), 'm')]
    const others = new Mutex(await world.soon(other.locks.session({ ttlMs: 9_000 })), 'm')
    await world.soon(others.lock())
    const ours = watch(first.lock())
    await world.clock.advance(50)
    const controller = new AbortController()
    second.lock({ signal: controller.signal }).catch(() => {})
    await world.clock.advance(50)
    one.client.cutOff(500)
    controller.abort()
    await world.clock.advance(50)
    watch(second.lock())
    await world.clock.advance(2_000)
    await world.soon(others.unlock())
    await world.clock.advance(2_000)
    expect(ours.state).toBe('resolved')
  })
})

describe('what a candidate says', () => {
  it('is not taken for what a claim says of itself', async () => {
    const world = new MadeUpWorld()
    const elections = await Promise.all(['one', 'two'].map(async (name) => new Election(await world.soon(world.process(name).locks.session()), 'e')))
    const value = writeValue({ id: 'a', owner: 'b', ttl: 10_000, at: 1, take: 1, limit: 2, type: undefined, metadata: undefined })
    const [first, second] = elections.map((election) => watch(election.campaign(value)))
    await world.clock.advance(2_000)
    expect([first!.state, second!.state].sort()).toEqual(['pending', 'resolved'])
  })
})

describe('a session whose end is not answered', () => {
  it('is asked to end once more, and not for as long as it would have lasted', async () => {
    const world = new MadeUpWorld()
    const { client, locks } = world.process('holder')
    const session = await world.soon(locks.session())
    let asked = 0
    client.fateOf = (call) => (call === 'leaseRevoke' && ++asked === 1 ? 'answer lost' : 'well')
    await world.soon(session.close())
    await world.clock.advance(60_000)
    // One of them since its mailbox is gone.
    expect(asked).toBeLessThanOrEqual(3)
  })
})

describe('a revocation', () => {
  it('is told of while what was given away is being adopted', async () => {
    const world = new MadeUpWorld()
    const [giver, adopter, other] = [world.process('giver'), world.process('adopter'), world.process('other')]
    const given = await world.soon(giver.locks.lock('k', { ttlMs: 9_000 }))
    await world.soon((await world.soon(adopter.locks.lock('another', { ttlMs: 9_000 }))).release())
    await world.clock.advance(2_000)
    // Its lease has to be renewed first.
    const { latencyMs } = adopter.client
    adopter.client.fateOf = (call) => {
      adopter.client.latencyMs = call === 'keepAlive' ? () => 250 : latencyMs
      return 'well'
    }
    const adopting = watch(adopter.locks.adopt(given.transfer()))
    await world.clock.advance(100)
    expect(adopting.state).toBe('pending')
    expect(await world.soon(other.locks.forceRelease('k'))).toBe(true)
    await world.clock.advance(10_000)
    expect(adopting.state).toBe('resolved')
    expect(isHeld(adopting.value!)).toBe(false)
    expect(world.etcd.keys.filter((key) => key.startsWith('holdfast/k/'))).toEqual([])
  })
})

describe('while etcd is away', () => {
  const COUNT = 1_000

  it.each<[string, Fate]>([['well', 'well'], ['away', 'request lost']])('few deletions are sent for what ends meanwhile: %s', async (_, fate) => {
    const world = new MadeUpWorld()
    const { client, locks } = world.process('holder', { ttlMs: 10_000 })
    let deletions = 0
    for (let i = 0; i < COUNT; i++) {
      locks.lock(`k${i}`, { autoRenew: false }).catch(() => {})
      await world.clock.advance(2)
    }
    await world.clock.advance(100)
    client.fateOf = (call, request) => {
      if (request) deletions += writesOf(request).filter((write) => write.startsWith('delete ')).length
      return call === 'txn' ? fate : 'well'
    }
    await world.clock.advance(13_000)
    expect(deletions).toBeGreaterThanOrEqual(COUNT)
    expect(deletions).toBeLessThanOrEqual(3 * COUNT)
  })
})
