import { describe, expect, it } from 'vitest'
import { MemoryBackend } from '../../src/backends/memory/backend.js'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { MemoryStore } from '../../src/backends/memory/store.js'
import type { Backend, Claim, ClaimState, WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'

/** A store whose time the test sets, and processes on it. */
function setUp() {
  const time = { ms: 1_000 }
  const store = new MemoryStore(() => time.ms)
  const open = (owner: string, wakeUps: WakeUp[] = []): Backend => {
    const wake = (wakeUp: WakeUp) => void wakeUps.push(wakeUp)
    return new MemoryBackend(store, { prefix: 'p', owner, clock: systemClock(), retryMs: 50, wake, warn: () => {} })
  }
  return { time, store, open }
}

let made = 0
function claim(resource: string, settings: Partial<Claim> = {}): Claim {
  return { id: `claim-${made++}`, resource, take: 1, limit: 1, ttlMs: 10_000, ...settings }
}

async function one(states: Promise<readonly ClaimState[]>): Promise<ClaimState> {
  return (await states)[0]!
}

describe('a store in memory', () => {
  it('keeps nothing of 100,000 resources that come and go', async () => {
    const { time, store, open } = setUp()
    const a = open('a')
    const b = open('b')
    for (let i = 0; i < 100_000; i++) {
      const held = claim(`key-${i}`)
      const waiting = claim(`key-${i}`)
      await a.claim([held], 'queue')
      await b.claim([waiting], 'queue')
      await b.claim([claim(`key-${i}`)], 'leave')
      if (i % 4 === 0) await b.release([waiting])
      await a.release([held])
      if (i % 4 === 1) await b.release([waiting])
      if (i % 4 === 2) await a.revoke(`key-${i}`, 'now')
      if (i % 4 === 3) {
        // Expired, and found out by somebody's look.
        time.ms += 20_000
        await b.renew([{ claim: waiting, ttlMs: 1, exact: false }])
      }
    }
    expect(store.size).toBe(0)
    expect((b as MemoryBackend).waiting.size).toBe(0)
  })

  it('keeps nothing of a process that goes but what it holds, and that until it expires', async () => {
    const { time, store, open } = setUp()
    const a = open('a')
    const b = open('b')
    await a.claim([claim('held')], 'queue')
    const theirs = claim('waited for')
    await b.claim([theirs], 'queue')
    await a.claim([claim('waited for'), claim('waited for')], 'queue')
    await a.close()
    await b.release([theirs])
    expect(store.size).toBe(1)
    time.ms += 10_000
    for await (const resource of b.inspect('')) expect.unreachable(resource.key)
    expect(store.size).toBe(0)
  })

  // Work that grows with the square of the line would be billions of steps here, and run into the time limit.
  describe('with a long line', { timeout: 10_000 }, () => {
    const LENGTH = 50_000

    async function line(length = LENGTH) {
      const { open, store } = setUp()
      const wakeUps: WakeUp[] = []
      const a = open('a')
      const b = open('b', wakeUps)
      const held = claim('key')
      await a.claim([held], 'queue')
      const waiting = Array.from({ length }, () => claim('key'))
      for (const one of waiting) await b.claim([one], 'queue')
      return { store, wakeUps, a, b, held, waiting }
    }

    it('drains in order', async () => {
      const { store, wakeUps, a, b, held, waiting } = await line()
      await a.release([held])
      for (const one of waiting) await b.release([one])
      expect(wakeUps.map((wakeUp) => wakeUp.kind === 'granted' && wakeUp.claimId)).toEqual(waiting.map(({ id }) => id))
      expect(store.size).toBe(0)
    })

    it('answers all of them again', async () => {
      const { b, waiting } = await line()
      for (const [ahead, one] of waiting.entries()) expect((await b.claim([one], 'queue'))[0]).toMatchObject({ ahead })
    })

    it('lets them leave from the middle', async () => {
      const { store, wakeUps, a, b, held, waiting } = await line(10_000)
      const scattered = waiting.map((_, i) => waiting[(i * 7_919) % waiting.length]!)
      for (const one of scattered) await b.release([one])
      expect(wakeUps).toEqual([])
      await a.release([held])
      expect(store.size).toBe(0)
    })

    it('lets their process go', async () => {
      const { store, a, b, held } = await line()
      await b.close()
      await a.release([held])
      expect(store.size).toBe(0)
    })

    it('lets readers in, renews them and lets them expire', async () => {
      const { time, store, open } = setUp()
      const a = open('a')
      const readers = Array.from({ length: LENGTH }, () => claim('key', { limit: LENGTH }))
      for (const one of readers) await a.claim([one], 'queue')
      for (const claim of readers) await a.renew([{ claim, ttlMs: 20_000, exact: false }])
      time.ms += 20_000
      expect(await a.revoke('key', 'now')).toBe('free')
      expect(store.size).toBe(0)
    })
  })

  it('is one for all managers of a factory, and another for another factory', async () => {
    const scope = (owner: string) => ({ prefix: 'p', owner, clock: systemClock(), retryMs: 50, wake: () => {}, warn: () => {} })
    const [factory, other] = [memoryBackend(), memoryBackend()]
    expect((await one(factory(scope('a')).claim([claim('key')], 'leave'))).status).toBe('held')
    expect((await one(factory(scope('b')).claim([claim('key')], 'leave'))).status).toBe('refused')
    expect((await one(other(scope('c')).claim([claim('key')], 'leave'))).status).toBe('held')
  })

  it('judges expiry by the clock that it is given', async () => {
    const { time, open } = setUp()
    const a = open('a')
    await a.claim([claim('key', { ttlMs: 100 })], 'leave')
    time.ms += 99
    const refused = await one(a.claim([claim('key')], 'leave'))
    expect(refused).toMatchObject({ status: 'refused', holder: { heldForMs: 99, expiresInMs: 1 } })
    time.ms += 1
    expect((await one(a.claim([claim('key')], 'leave'))).status).toBe('held')
  })

  it('tells nobody in the middle of a step', async () => {
    const { open } = setUp()
    const told: string[] = []
    const wakeUps: WakeUp[] = []
    wakeUps.push = (...all) => told.push(...all.map(({ kind }) => kind))
    const a = open('a')
    const b = open('b', wakeUps)
    const held = claim('key')
    await a.claim([held], 'queue')
    await b.claim([claim('key')], 'queue')
    const release = a.release([held])
    expect(told).toEqual([])
    await release
    expect(told).toEqual(['granted'])
  })

  it('does not tell a process that has closed since', async () => {
    const { open } = setUp()
    const wakeUps: WakeUp[] = []
    const a = open('a')
    const b = open('b', wakeUps)
    const held = claim('key')
    await a.claim([held], 'queue')
    await b.claim([claim('key')], 'queue')
    await Promise.all([a.release([held]), b.close()])
    expect(wakeUps).toEqual([])
  })

  it('says what is wrong with a claim', async () => {
    const { open } = setUp()
    const a = open('a')
    await a.claim([claim('a "key"', { limit: 2 })], 'queue')
    const bad = [claim('key', { take: 3, limit: 2 }), claim('a "key"'), claim('key', { take: 0 }), claim('key', { take: 0.5 })]
    const states = await a.claim(bad, 'queue')
    expect(states.map((state) => state.status === 'failed' && state.error.message)).toMatchInlineSnapshot(`
      [
        "A claim on "key" takes 3 of 2 slots, so it can never hold.",
        ""a \\"key\\"" is in use with a limit of 2, so a claim with a limit of 1 cannot join. Use one limit for it everywhere; it can change while nobody holds it or waits for it.",
        "A claim on "key" takes 0 of 1 slots, so it can never hold.",
        "A claim on "key" takes 0.5 of 1 slots, so it can never hold.",
      ]
    `)
  })

  it('gives a new place to one that brings back what is none, or is another\'s', async () => {
    const { open } = setUp()
    const a = open('a')
    await a.claim([claim('key')], 'queue')
    const first = await one(a.claim([claim('key')], 'queue')) as { place: string }
    for (const [i, place] of [first.place, '', 'x', '-1', '0', '1.5', '1e400', '999999', 'Infinity'].entries()) {
      expect(await one(a.claim([claim('key', { place })], 'queue'))).toMatchObject({ status: 'queued', ahead: i + 1 })
    }
  })
})
