import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ServerClock, systemClock, type ClockSources } from '../../src/core/clock.js'
import { settle } from '../support/manual-clock.js'

/** A machine whose three clocks the test moves. */
function machine() {
  const time = { monotonic: 5_000, wall: 1_700_000_000_000, uptime: 80_000 }
  const sources: ClockSources = { monotonic: () => time.monotonic, wall: () => time.wall, uptime: () => time.uptime }
  return {
    clock: systemClock(sources),
    pass: (ms: number) => {
      time.monotonic += ms
      time.wall += ms
      time.uptime += ms
    },
    setWall: (byMs: number) => {
      time.wall += byMs
    },
    suspend: (ms: number) => {
      time.wall += ms
      time.uptime += ms
    },
  }
}

describe('the system clock', () => {
  it('goes as fast as the monotonic clock', () => {
    const { clock, pass } = machine()
    const start = clock.now()
    pass(1_234)
    expect(clock.now() - start).toBe(1_234)
  })

  it.each([300_000, -300_000])('does not notice that the wall clock is set by %d ms', (step) => {
    const { clock, pass, setWall } = machine()
    const start = clock.now()
    pass(10)
    setWall(step)
    expect(clock.now() - start).toBe(10)
    pass(10)
    expect(clock.now() - start).toBe(20)
    setWall(-step)
    expect(clock.now() - start).toBe(20)
  })

  it('counts a suspend, during which the monotonic clock stands still', () => {
    const { clock, pass, suspend } = machine()
    const start = clock.now()
    pass(10)
    suspend(60_000)
    expect(clock.now() - start).toBe(60_010)
    pass(5)
    expect(clock.now() - start).toBe(60_015)
  })

  it('counts every suspend once, whatever is done to the wall clock in between', () => {
    const { clock, pass, suspend, setWall } = machine()
    const start = clock.now()
    suspend(60_000)
    expect(clock.now() - start).toBe(60_000)
    setWall(300_000)
    expect(clock.now() - start).toBe(60_000)
    pass(1_000)
    suspend(7_000)
    expect(clock.now() - start).toBe(68_000)
    setWall(-600_000)
    expect(clock.now() - start).toBe(68_000)
  })

  it('counts a suspend even if the wall clock was set while nobody looked', () => {
    const { clock, suspend, setWall } = machine()
    const start = clock.now()
    suspend(60_000)
    setWall(300_000)
    expect(clock.now() - start).toBe(60_000)
  })

  it('does not take the steps in which uptime is read for a suspend', () => {
    const time = { monotonic: 0, wall: 0 }
    const clock = systemClock({
      monotonic: () => time.monotonic,
      wall: () => time.wall,
      uptime: () => Math.floor(time.monotonic / 10) * 10,
    })
    const start = clock.now()
    for (let i = 1; i <= 100; i++) {
      time.monotonic += 7
      time.wall += 7 + (i % 2 ? 1_000 : -1_000)
      expect(clock.now() - start).toBe(7 * i)
    }
  })

  it('never goes back, and never runs slower than the monotonic clock, whatever happens', () => {
    const step = fc.oneof(
      fc.record({ kind: fc.constant('pass' as const), ms: fc.nat(10_000) }),
      fc.record({ kind: fc.constant('suspend' as const), ms: fc.nat(1_000_000) }),
      fc.record({ kind: fc.constant('setWall' as const), ms: fc.integer({ min: -1_000_000, max: 1_000_000 }) }),
    )
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
        const it = machine()
        const start = it.clock.now()
        let last = start
        let passed = 0
        let awake = 0
        for (const { kind, ms } of steps) {
          it[kind](ms)
          if (kind !== 'setWall') passed += ms
          if (kind === 'pass') awake += ms
          const now = it.clock.now()
          expect(now).toBeGreaterThanOrEqual(last)
          expect(now - start).toBeGreaterThanOrEqual(awake)
          expect(now - start).toBeLessThanOrEqual(passed)
          last = now
        }
      }),
    )
  })

  it('does not keep the process alive for what runs in the background, and does for what a caller waits for', () => {
    const clock = systemClock()
    const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
    const before = timers()
    const background = clock.timer(1_000, () => {}, 'background')
    // A timer that does not keep the process alive is not listed.
    expect(timers()).toBe(before)
    const awaited = clock.timer(1_000, () => {}, 'awaited')
    expect(timers()).toBe(before + 1)
    background.cancel()
    awaited.cancel()
    expect(timers()).toBe(before)
  })

  it('runs a task once, and not after it was cancelled', async () => {
    const clock = systemClock()
    let runs = 0
    await new Promise<void>((resolve) => {
      clock.timer(1, () => (runs++, resolve()), 'awaited')
      clock.timer(0, () => (runs += 100), 'awaited').cancel()
    })
    await settle()
    expect(runs).toBe(1)
  })

  it.each([2 ** 31, 1e15, Infinity])('does not fire at once when it is asked to wait %d ms', async (ms) => {
    const clock = systemClock()
    let fired = false
    const timer = clock.timer(ms, () => (fired = true), 'background')
    await new Promise((resolve) => setTimeout(resolve, 20))
    timer.cancel()
    expect(fired).toBe(false)
  })

  it('takes a moment that has passed already as now', async () => {
    await new Promise<void>((resolve) => {
      systemClock().timer(-5_000, resolve, 'awaited')
    })
  })
})

describe("what is known of a server's clock", () => {
  it('is nothing before the first exchange, and after a reconnect', () => {
    const server = new ServerClock()
    expect(server.toLocal(1_000, 50)).toBeUndefined()
    expect(server.atMost(50)).toBeUndefined()
    server.observe(10, 1_000)
    expect(server.toLocal(1_000, 50)).toBeDefined()
    expect(server.atMost(50)).toBeDefined()
    server.forget()
    expect(server.toLocal(1_000, 50)).toBeUndefined()
    expect(server.atMost(50)).toBeUndefined()
  })

  it('never dates a moment of the server later than it was, if the server is at most 0.1 % fast or slow', () => {
    fc.assert(
      fc.property(
        fc.double({ min: -0.000_99, max: 0.000_99, noNaN: true }),
        fc.nat(200),
        fc.integer({ min: -1_000_000, max: 10_000_000 }),
        (skew, travelMs, laterMs) => {
          const serverAt = (local: number) => Math.floor(5_000_000 + local * (1 + skew))
          const server = new ServerClock()
          const sentAt = 1_000_000
          server.observe(sentAt, serverAt(sentAt + travelMs))
          const moment = sentAt + travelMs + laterMs
          expect(server.toLocal(serverAt(moment), moment)!).toBeLessThanOrEqual(moment)
          // And never shows more than it is thought to show at most.
          if (laterMs >= 0) expect(server.atMost(moment)!).toBeGreaterThanOrEqual(serverAt(moment))
        },
      ),
    )
  })

  it('is what it shows at most: the part of a millisecond that it did not tell counts, and no more than that and the drift', () => {
    const server = new ServerClock()
    // It may have been 50,000.999 then.
    server.observe(1_000, 50_000)
    expect(server.atMost(1_010)).toBeGreaterThanOrEqual(50_011)
    expect(server.atMost(1_010)).toBeLessThanOrEqual(50_012)
  })

  it('does not date what is past into the future: then the clock of the server was set', () => {
    const server = new ServerClock()
    server.observe(1_000, 50_000)
    expect(server.toLocal(50_500, 1_600)).toBeLessThanOrEqual(1_500)
    expect(server.toLocal(60_000, 1_600)).toBeUndefined()
  })
})
