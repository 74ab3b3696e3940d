/** The checker finds what is wrong in histories that are known to be, and nothing in those that are not. */
import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { TURNS } from '../../src/core/hold.js'
import type { Event } from '../fault/history.js'
import { check, windows, type Model, type Operation, type Verdict } from '../fault/linearizability.js'
import {
  lockHistory, lockModel, type LockInput, type LockOperation, type LockOutput, type LockState,
} from '../fault/lock-model.js'

const WITHIN = { withinMs: 5_000 }

/** The plainest thing there is: a number that can be written and read. */
type RegisterInput = { readonly type: 'write'; readonly value: number } | { readonly type: 'read' }

const register: Model<number, RegisterInput, number> = {
  initial: 0,
  step(state, input, output) {
    if (input.type === 'write') return input.value
    return output === undefined || output === state ? state : undefined
  },
  keyOf: String,
  readsOnly: (input) => input.type === 'read',
}

/** No `to`: its outcome is unknown. */
function operation<Input, Output>(process: string, input: Input, output: Output | undefined, from: number, to?: number) {
  return { process, input, output, calledAt: BigInt(from), returnedAt: to === undefined ? undefined : BigInt(to) }
}

const write = (process: string, value: number, from: number, to?: number): Operation<RegisterInput, number> =>
  operation(process, { type: 'write', value }, undefined, from, to)

const read = (process: string, value: number | undefined, from: number, to?: number): Operation<RegisterInput, number> =>
  operation(process, { type: 'read' }, value, from, to)

const isRegister = (...operations: Operation<RegisterInput, number>[]): boolean => check(operations, register, WITHIN).ok

describe('a register', () => {
  it('is read as it was written', () => {
    expect(isRegister()).toBe(true)
    expect(isRegister(write('a', 1, 0, 1), read('b', 1, 2, 3), write('a', 2, 4, 5), read('b', 2, 6, 7))).toBe(true)
    expect(isRegister(read('b', 0, 0, 1))).toBe(true)
    expect(isRegister(read('b', 1, 0, 1))).toBe(false)
  })

  it('is not read as it was before what has been written', () => {
    expect(isRegister(write('a', 1, 0, 1), read('b', 0, 2, 3))).toBe(false)
  })

  it('is read either way while it is being written', () => {
    expect(isRegister(write('a', 1, 0, 10), read('b', 0, 2, 3), read('c', 1, 2, 3))).toBe(true)
    expect(isRegister(write('a', 100, 0, 100), read('b', 100, 25, 75), read('c', 0, 30, 60))).toBe(true)
  })

  it('does not go back: the new value, and then the old one', () => {
    expect(isRegister(write('a', 1, 0, 100), read('b', 1, 10, 30), read('c', 0, 40, 90))).toBe(false)
    expect(isRegister(write('a', 1, 0, 100), read('b', 0, 10, 30), read('c', 1, 40, 90))).toBe(true)
  })

  it('has one order of writes for all who read', () => {
    const writes = [write('a', 1, 0, 10), write('b', 2, 0, 10)]
    expect(isRegister(...writes, read('c', 1, 1, 3), read('c', 2, 5, 8), read('d', 2, 4, 9))).toBe(true)
    expect(isRegister(...writes, read('c', 1, 1, 3), read('c', 2, 5, 8), read('d', 2, 1, 3), read('d', 1, 5, 8))).toBe(false)
  })

  it('finds the order that is needed, not only that of the calls', () => {
    expect(isRegister(write('a', 1, 0, 10), write('b', 2, 1, 10), write('c', 3, 2, 10), read('d', 1, 11, 12))).toBe(true)
    expect(isRegister(write('a', 1, 0, 3), write('b', 2, 2, 10), write('c', 3, 4, 10), read('d', 1, 11, 12))).toBe(false)
  })

  it('takes for concurrent what happens at the same time', () => {
    expect(isRegister(write('a', 1, 0, 5), read('b', 0, 5, 6))).toBe(true)
    expect(isRegister(write('a', 1, 0, 5), read('b', 0, 6, 7))).toBe(false)
  })

  it('has its history in any order', () => {
    const history = [write('a', 1, 0, 1), read('b', 1, 2, 3), write('a', 2, 4, 5), read('b', 2, 6, 7)]
    expect(isRegister(...history.toReversed())).toBe(true)
    expect(isRegister(read('b', 0, 2, 3), write('a', 1, 0, 1))).toBe(false)
  })
})

describe('an unknown outcome', () => {
  it('may have taken effect at once, late, or never', () => {
    const lost = write('a', 1, 0)
    expect(isRegister(lost, read('b', 1, 2, 3))).toBe(true)
    expect(isRegister(lost, read('b', 0, 2, 3), read('b', 0, 4, 5), read('b', 1, 6, 7))).toBe(true)
    expect(isRegister(lost, read('b', 0, 2, 3))).toBe(true)
  })

  it('has taken effect once at most', () => {
    expect(isRegister(write('a', 1, 0), read('b', 1, 2, 3), write('b', 2, 4, 5), read('b', 1, 6, 7))).toBe(false)
    expect(isRegister(write('a', 1, 0), write('c', 1, 0), read('b', 1, 2, 3), write('b', 2, 4, 5), read('b', 1, 6, 7))).toBe(true)
  })

  it('has not taken effect before its call', () => {
    expect(isRegister(read('b', 1, 0, 1), write('a', 1, 2))).toBe(false)
    expect(isRegister(read('b', 1, 0, 2), write('a', 1, 2))).toBe(true)
  })

  it('of a read says nothing', () => {
    expect(isRegister(read('a', undefined, 0), write('b', 1, 1, 2), read('b', 1, 3, 4))).toBe(true)
    expect(isRegister(read('a', 7, 0), read('b', 0, 3, 4))).toBe(true)
  })
})

describe('what is said', () => {
  it('of a history that is in order', () => {
    expect(check([write('a', 1, 0, 1)], register, WITHIN)).toEqual({ ok: true })
  })

  it('of one that is not: how far it went, and what was in the way', () => {
    const first = write('a', 1, 0, 1)
    const late = [read('b', 0, 2, 5), read('c', 7, 3, 6)]
    const unknown = read('d', 9, 0)
    expect(check([first, ...late, unknown, write('e', 3, 7, 8)], register, WITHIN)).toEqual({
      ok: false, timedOut: false, longest: [first], state: 1, stuckAt: late,
    })
  })

  it('the longest order of all that were tried', () => {
    const history = [write('a', 1, 0, 10), write('b', 2, 0, 10), read('c', 1, 11, 12), read('c', 2, 13, 14)]
    expect(check(history, register, WITHIN)).toMatchObject({
      longest: [history[1], history[0], history[2]], state: 1, stuckAt: [history[3]],
    })
  })
})

describe('the search', () => {
  /** Every set of these writes can have come first, in any order, and none helps. */
  const hopeless = (count: number) => [
    ...Array.from({ length: count }, (_, i) => write(`w${i}`, i + 1, 0, 10)),
    read('r', -1, 11, 12),
  ]

  it('does not go the same way twice', () => {
    // 479,001,600 orders, and 12 × 2^11 points.
    expect(check(hopeless(12), register, WITHIN)).toMatchObject({ ok: false, timedOut: false })
  })

  it('gives up in time, and does not call that right', () => {
    const from = performance.now()
    const verdict = check(hopeless(30), register, { withinMs: 100 })
    expect(verdict).toEqual({ ok: false, timedOut: true })
    expect(performance.now() - from).toBeLessThan(5_000)
    expect(check([write('a', 1, 0, 1)], register, { withinMs: 0 })).toEqual({ ok: false, timedOut: true })
  })

  it('is not deep: a long way needs no stack', () => {
    const history = Array.from({ length: 20_000 }, (_, i) => write('a', i, 2 * i, 2 * i + 1))
    expect(check(history, register, { withinMs: 20_000, windowSize: Infinity })).toEqual({ ok: true })
  })
})

describe('windows', () => {
  const sizes = (history: readonly Operation<RegisterInput, number>[], size: number): number[] =>
    windows(history, size).map(({ called }) => called.length)

  it('are cut where the fewest are pending', () => {
    const history = [write('a', 1, 0, 5), write('b', 1, 1, 5), write('c', 1, 6, 9), write('d', 1, 7, 9), write('e', 1, 8, 9)]
    expect(windows(history, 3)).toEqual([
      { called: history.slice(0, 2), until: 6n },
      { called: history.slice(2), until: undefined },
    ])
    expect(sizes(history, 5)).toEqual([5])
    expect(sizes([], 5)).toEqual([])
  })

  it('are cut all the same where something is always pending, and no smaller than half the size', () => {
    const overlapping = Array.from({ length: 100 }, (_, i) => write('a', i, i, i + 5))
    for (const size of [1, 2, 7, 10]) {
      const found = sizes(overlapping, size)
      expect(Math.max(...found)).toBeLessThanOrEqual(size)
      expect(Math.min(...found.slice(0, -1))).toBeGreaterThanOrEqual(size / 2)
      expect(found.reduce((sum, one) => sum + one)).toBe(100)
    }
  })

  it('do not wait for what has an unknown outcome', () => {
    const history = [write('a', 1, 0, 1), write('b', 1, 2), write('c', 1, 3), write('d', 1, 4, 5), write('e', 1, 6, 7)]
    expect(sizes(history, 4)).toEqual([4, 1])
  })

  const everywhere = (...history: Operation<RegisterInput, number>[]): boolean[] =>
    [1, 2, 3, 4, 100].map((windowSize) => check(history, register, { ...WITHIN, windowSize }).ok)
  const all = (ok: boolean): boolean[] => Array.from({ length: 5 }, () => ok)

  it('do not hide what is wrong across their border', () => {
    expect(everywhere(write('a', 1, 0, 1), read('b', 1, 2, 3), read('b', 0, 4, 5))).toEqual(all(false))
    expect(everywhere(write('a', 1, 0, 20), read('b', 1, 2, 3), read('b', 0, 4, 5))).toEqual(all(false))
  })

  it('keep every state that there may be at their end', () => {
    const writes = [write('a', 1, 0, 10), write('b', 2, 0, 10)]
    expect(everywhere(...writes, read('c', 1, 11, 12))).toEqual(all(true))
    expect(everywhere(...writes, read('c', 2, 11, 12))).toEqual(all(true))
    expect(everywhere(...writes, read('c', 1, 11, 12), read('c', 2, 13, 14))).toEqual(all(false))
  })

  it('know what has taken effect of that which is pending', () => {
    const pending = write('a', 1, 0, 20)
    const between = [read('b', 1, 1, 2), write('b', 2, 3, 4), read('b', 2, 5, 6)]
    expect(everywhere(pending, ...between)).toEqual(all(true))
    expect(everywhere(pending, ...between, read('b', 1, 7, 8))).toEqual(all(false))
    expect(everywhere(write('a', 1, 0), ...between)).toEqual(all(true))
    expect(everywhere(write('a', 1, 0), ...between, read('b', 1, 7, 8))).toEqual(all(false))
  })

  it('carry on what is unknown as far as it is needed', () => {
    const quiet = Array.from({ length: 10 }, (_, i) => read('b', 0, 10 * i + 1, 10 * i + 2))
    expect(everywhere(write('a', 1, 0), ...quiet, read('b', 1, 200, 201))).toEqual(all(true))
    expect(everywhere(write('a', 1, 0), ...quiet, read('b', 1, 200, 201), read('b', 0, 202, 203))).toEqual(all(false))
  })
})

describe('the model of a lock', () => {
  const acquire = (op: string, fence: number | undefined, from: number, to?: number): LockOperation =>
    operation(op, { type: 'acquire', op }, fence === undefined ? undefined : BigInt(fence), from, to)
  const release = (op: string, fence: number, ours: boolean | undefined, from: number, to?: number): LockOperation =>
    operation(op, { type: 'release', op, fence: BigInt(fence) }, ours, from, to)
  const expire = (op: string, fence: number, from: number): LockOperation =>
    operation(op, { type: 'expire', op, fence: BigInt(fence) }, undefined, from)
  /** What saves time only must not change the verdict. */
  const withoutShortCuts = { ...lockModel, readsOnly: () => false, isTooLate: () => false }
  const isLock = (...operations: LockOperation[]): boolean => {
    const { ok } = check(operations, withoutShortCuts, WITHIN)
    expect(check(operations, lockModel, WITHIN).ok).toBe(ok)
    return ok
  }

  it('lets one hold after the other', () => {
    expect(isLock(acquire('a', 1, 0, 1), release('a', 1, true, 5, 6), acquire('b', 2, 0, 7))).toBe(true)
    const both = [acquire('a', 1, 0, 1), release('a', 1, true, 5, 9), acquire('b', 2, 0, 7), release('b', 2, true, 8, 9)]
    expect(isLock(...both)).toBe(true)
  })

  it('does not let two hold at once', () => {
    expect(isLock(acquire('a', 1, 0, 1), release('a', 1, true, 5, 6), acquire('b', 2, 0, 4))).toBe(false)
    expect(isLock(acquire('a', 1, 0, 1), acquire('b', 2, 2, 3))).toBe(false)
    expect(isLock(acquire('a', 1, 0, 1), acquire('b', 2, 0, 1))).toBe(false)
  })

  it('has fences that grow', () => {
    const after = (fence: number) => isLock(acquire('a', 5, 0, 1), release('a', 5, true, 2, 3), acquire('b', fence, 4, 5))
    expect([4, 5, 6].map(after)).toEqual([false, false, true])
    // Beyond 2^53 they are still told apart.
    const large = (fence: bigint) => isLock({ ...acquire('a', 0, 0, 1), output: 2n ** 53n }, release('a', 0, false, 2, 3), {
      ...acquire('b', 0, 4, 5), output: fence,
    }, operation('a', { type: 'expire', op: 'a', fence: 2n ** 53n }, undefined, 1))
    expect([large(2n ** 53n), large(2n ** 53n + 1n)]).toEqual([false, true])
  })

  it('lets only the holder release', () => {
    expect(isLock(acquire('a', 1, 0, 1), release('b', 2, true, 2, 3))).toBe(false)
    expect(isLock(acquire('a', 1, 0, 1), release('b', 2, false, 2, 3))).toBe(true)
    expect(isLock(acquire('a', 1, 0, 1), release('a', 1, true, 2, 3), release('a', 1, true, 4, 5))).toBe(false)
    expect(isLock(acquire('a', 1, 0, 1), release('a', 1, true, 2, 3), release('a', 1, false, 4, 5))).toBe(true)
    expect(isLock(acquire('a', 1, 0, 1), release('a', 1, false, 2, 3))).toBe(false)
  })

  it('lets another hold after an expiry, and the first not release any more', () => {
    const expired = [acquire('a', 1, 0, 1), expire('a', 1, 0), acquire('b', 2, 2, 3)]
    expect(isLock(...expired)).toBe(true)
    expect(isLock(...expired, release('a', 1, false, 4, 5))).toBe(true)
    expect(isLock(...expired, release('a', 1, true, 4, 5))).toBe(false)
    expect(isLock(...expired, acquire('c', 3, 4, 5))).toBe(false)
  })

  it('lets nothing expire before it could', () => {
    expect(isLock(acquire('a', 1, 0, 1), acquire('b', 2, 2, 3), expire('a', 1, 4))).toBe(false)
    expect(isLock(acquire('a', 1, 0, 1), acquire('b', 2, 2, 5), expire('a', 1, 4))).toBe(true)
  })

  it('does not care for outcomes that nobody knows', () => {
    const unheard = acquire('a', undefined, 0)
    expect(isLock(unheard, acquire('b', 1, 1, 2), release('b', 1, undefined, 3), acquire('c', 2, 4, 5))).toBe(true)
    expect(isLock(unheard, acquire('b', 1, 1, 2), release('b', 1, undefined, 6), acquire('c', 2, 4, 5))).toBe(false)
  })
})

describe('the history of a lock', () => {
  interface Told {
    readonly worker?: string
    readonly key?: string
    readonly asked: number
    readonly granted?: number
    readonly fence?: number
    readonly refused?: number
    readonly confirmed?: readonly (readonly [since: number, at: number])[]
    readonly lost?: number
    /** Without an `at` it was never answered. */
    readonly releases?: readonly (readonly [releasing: number, at?: number, ours?: boolean | string])[]
  }

  function story(op: string, told: Told): Event[] {
    const about = (at: number) => ({ at: BigInt(at), worker: told.worker ?? `of ${op}`, op, key: told.key ?? 'k' })
    const events: Event[] = [{ type: 'asked', ...about(told.asked), workload: 'fenced' }]
    if (told.granted !== undefined) events.push({ type: 'granted', ...about(told.granted), fence: BigInt(told.fence!) })
    if (told.refused !== undefined) events.push({ type: 'refused', ...about(told.refused), error: 'LockNotAcquiredError' })
    for (const [since, at] of told.confirmed ?? []) events.push({ type: 'confirmed', ...about(at), since: BigInt(since) })
    if (told.lost !== undefined) events.push({ type: 'lost', ...about(told.lost), error: 'OwnershipLostError' })
    for (const [releasing, at, ours] of told.releases ?? []) {
      events.push({ type: 'releasing', ...about(releasing) })
      if (at !== undefined) events.push({ type: 'released', ...about(at), ours: ours ?? true })
    }
    return events
  }

  const judge = (events: readonly Event[], settleMs?: number): boolean =>
    check(lockHistory(events, 'k', settleMs), lockModel, WITHIN).ok

  const after = (at: number) => story('next', { asked: 0, granted: at, fence: 2_048, releases: [[at + 10, at + 11]] })

  it('is that of one key, and of those who were granted it', () => {
    const events = [
      ...story('a', { asked: 0, granted: 1, fence: 1_024, releases: [[5, 6]] }),
      ...story('b', { asked: 2, refused: 4 }),
      ...story('c', { asked: 3 }),
      ...story('d', { asked: 0, granted: 1, fence: 1_024, key: 'another', releases: [[5, 6]] }),
      { type: 'wrote', at: 3n, op: 'a', key: 'k', fence: 1_024n, accepted: true, value: 1, lostUpdate: false } as const,
    ]
    expect(lockHistory(events, 'k')).toEqual([
      { process: 'of a', input: { type: 'acquire', op: 'a' }, output: 1_024n, calledAt: 0n, returnedAt: 1n },
      { process: 'of a', input: { type: 'release', op: 'a', fence: 1_024n }, output: true, calledAt: 5n, returnedAt: 6n },
    ])
    expect(lockHistory(events, 'nothing')).toEqual([])
  })

  it('refuses a log in which something is missing', () => {
    const [asked, ...rest] = story('a', { asked: 0, granted: 1, fence: 1_024, releases: [[5, 6]] })
    expect(() => lockHistory(rest, 'k')).toThrow('a before it has asked')
    expect(() => lockHistory([asked!, ...rest.filter(({ type }) => type !== 'releasing')], 'k')).toThrow('a was released before')
  })

  it('is right if one is granted as soon as the other calls release, as when it is handed over in memory', () => {
    const first = story('a', { asked: 0, granted: 1, fence: 1_024, releases: [[5, 9]] })
    expect(judge([...first, ...after(5)])).toBe(true)
    expect(judge([...first, ...after(4)])).toBe(false)
  })

  it('has a hold that nobody ended end with its worker, and not otherwise', () => {
    const first = story('a', { worker: 'w', asked: 0, granted: 1, fence: 1_024 })
    expect(judge([...first, ...after(9)])).toBe(false)
    expect(judge([...first, ...after(9), { type: 'ended', at: 5n, worker: 'w', how: 'killed' }])).toBe(true)
    expect(judge([...first, ...after(9), { type: 'ended', at: 5n, worker: 'another', how: 'killed' }])).toBe(false)
    expect(judge([...first, ...after(9), { type: 'fault', at: 5n, fault: 1, name: 'stop', target: 'v w' }])).toBe(true)
  })

  it('has a hold end that was released, whatever befell its worker', () => {
    const first = story('a', { worker: 'w', asked: 0, granted: 1, fence: 1_024, releases: [[10, 11]] })
    const ended: Event = { type: 'ended', at: 12n, worker: 'w', how: 'killed' }
    expect(judge([...first, ended, ...after(9)])).toBe(false)
    expect(judge([...first, ended, ...after(10)])).toBe(true)
  })

  it('has a hold end that was lost, but not while it was confirmed', () => {
    const lost = { asked: 0, granted: 1, fence: 1_024, lost: 20 }
    expect(judge([...story('a', lost), ...after(9)])).toBe(true)
    expect(judge([...story('a', { ...lost, confirmed: [[3, 4], [8, 12]] }), ...after(9)])).toBe(true)
    expect(judge([...story('a', { ...lost, confirmed: [[3, 4], [10, 12]] }), ...after(9)])).toBe(false)
    expect(judge([...story('a', { ...lost, confirmed: [[10, 12], [3, 4]] }), ...after(9)])).toBe(false)
  })

  it('has a hold end that was lost by the time of its release', () => {
    const first = { asked: 0, granted: 1, fence: 1_024, releases: [[20, 21, false]] } as const
    expect(judge([...story('a', first), ...after(9)])).toBe(true)
    expect(judge([...story('a', { ...first, confirmed: [[10, 12]] }), ...after(9)])).toBe(false)
    // It cannot have been lost, and have been released all the same.
    expect(judge([...story('a', { ...first, lost: 15, releases: [[20, 21, true]] }), ...after(9)])).toBe(false)
    expect(judge([...story('a', { ...first, lost: 15, releases: [[20, 21, true]] }), ...after(20)])).toBe(true)
  })

  it('lets a hold expire before its process came to hear of it', () => {
    const stopped = story('a', { asked: 0, granted: 30, fence: 1_024, lost: 31 })
    expect(judge([...stopped, ...after(9)])).toBe(true)
  })

  it('has a hold end with a release that failed or was never answered', () => {
    const failed = { asked: 0, granted: 1, fence: 1_024, releases: [[8, 12, 'BackendError']] } as const
    expect(judge([...story('a', failed), ...after(9)])).toBe(true)
    // When that was called it was held, else it would have said so.
    expect(judge([...story('a', failed), ...after(7)])).toBe(false)
    expect(judge([...story('a', { ...failed, lost: 2 }), ...after(7)])).toBe(true)
    expect(judge([...story('a', { ...failed, releases: [[8]] }), ...after(9)])).toBe(true)
    expect(judge([...story('a', { ...failed, releases: [[8]] }), ...after(7)])).toBe(true)
    expect(judge([...story('a', { ...failed, confirmed: [[8, 9]], releases: [[10]] }), ...after(7)])).toBe(false)
  })

  it('does not believe a release that was tried again: the first may have done it', () => {
    const twice = { asked: 0, granted: 1, fence: 1_024, releases: [[5, 6, 'BackendError'], [20, 21, true]] } as const
    expect(judge([...story('a', twice), ...after(9)])).toBe(true)
    expect(judge([...story('a', { ...twice, releases: [[5, 6, 'BackendError'], [20, 21, false]] }), ...after(9)])).toBe(true)
  })

  describe('while the store may have forgotten', () => {
    const fault: Event = { type: 'fault', at: 5n, fault: 3, name: 'failover', target: 'redis', forgets: true }
    const healed: Event = { type: 'healed', at: 50n, fault: 3, name: 'failover' }
    const settleMs = 1e-5 // 10 ns
    const first = { asked: 0, granted: 1, fence: 1_024, confirmed: [[10, 12]], releases: [[20, 21, true]] } as const

    it('a hold may end unnoticed, though its holder believes in it', () => {
      expect(judge([...story('a', first), fault, healed, ...after(9)], settleMs)).toBe(true)
      expect(judge([...story('a', first), fault, ...after(9)], settleMs)).toBe(true)
      expect(judge([...story('a', first), { ...fault, forgets: false }, ...after(9)], settleMs)).toBe(false)
    })

    it('not before, and not after', () => {
      expect(judge([...story('a', { ...first, confirmed: [[4, 4], [10, 12]] }), fault, ...after(3)], settleMs)).toBe(false)
      expect(judge([...story('a', { ...first, confirmed: [] }), { ...fault, at: 22n }, ...after(9)], settleMs)).toBe(false)
      expect(judge([...story('a', { ...first, confirmed: [] }), { ...fault, at: 21n }, ...after(9)], settleMs)).toBe(true)
      expect(judge([...story('a', { ...first, fence: 1_025, confirmed: [[4, 4]] }), fault, ...after(3)], settleMs)).toBe(false)
      const late = story('a', { asked: 61, granted: 62, fence: 1_024, releases: [[70, 71]] })
      expect(judge([...late, fault, healed, ...after(65)], settleMs)).toBe(false)
      expect(judge([...late, fault, { ...healed, at: 51n }, ...after(65)], settleMs)).toBe(true)
    })

    it('fences still grow, but for those that are handed over in memory by one who has lost it', () => {
      const second = story('b', { asked: 0, granted: 9, fence: 4_096, releases: [[15, 16]] })
      const third = (fence: number) => story('c', { asked: 17, granted: 25, fence, releases: [[30, 31]] })
      expect(judge([...story('a', first), fault, ...second, ...third(1_025)], settleMs)).toBe(true)
      expect(judge([...story('a', first), fault, ...second, ...third(2_048)], settleMs)).toBe(false)
      expect(judge([...story('a', first), fault, ...second, ...third(5_120)], settleMs)).toBe(true)
    })
  })
})

/** Small, fast, and the same on every machine for the same seed. */
function randomOf(seed: number): (below: number) => number {
  let state = seed >>> 0
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

describe('random histories', () => {
  /** The definition, word for word: try every order. */
  function isLinearizable<State, Input, Output>(
    left: readonly Operation<Input, Output>[],
    model: Model<State, Input, Output>,
    state = model.initial,
  ): boolean {
    if (left.every(({ returnedAt }) => returnedAt === undefined)) return true
    return left.some((next) => {
      if (left.some(({ returnedAt }) => returnedAt !== undefined && returnedAt < next.calledAt)) return false
      const after = model.step(state, next.input, next.returnedAt === undefined ? undefined : next.output)
      return after !== undefined && isLinearizable(left.filter((one) => one !== next), model, after)
    })
  }

  function compareWithDefinition<State, Input, Output>(
    model: Model<State, Input, Output>,
    anyOperation: (random: (below: number) => number) => readonly [Input, Output?],
  ): { linearizable: number; not: number } {
    const random = randomOf(7)
    const found = { linearizable: 0, not: 0 }
    for (let round = 0; round < 3_000; round++) {
      const history = Array.from({ length: 2 + random(5) }, (_, i) => {
        const from = random(12)
        const [input, output] = anyOperation(random)
        return operation(`p${i}`, input, output, from, random(4) === 0 ? undefined : from + random(6))
      })
      const expected = isLinearizable(history, model)
      const verdicts = [1, 2, 3, Infinity].map((windowSize) => check(history, model, { ...WITHIN, windowSize }).ok)
      expect(verdicts, inspect(history)).toEqual(verdicts.map(() => expected))
      found[expected ? 'linearizable' : 'not']++
    }
    return found
  }

  it('of a register are judged as by trying every order, whatever the windows', () => {
    const found = compareWithDefinition<number, RegisterInput, number>(register, (random) =>
      random(2) === 0 ? [{ type: 'write', value: random(3) }] : [{ type: 'read' }, random(3)],
    )
    expect(Math.min(found.linearizable, found.not)).toBeGreaterThan(300)
  })

  it('of a lock, too', () => {
    const found = compareWithDefinition<LockState, LockInput, LockOutput>(lockModel, (random) => {
      const fence = BigInt(1 + random(3))
      const type = (['acquire', 'acquire', 'release', 'expire'] as const)[random(4)]!
      if (type === 'acquire') return [{ type, op: '' }, fence]
      return type === 'release' ? [{ type, op: '', fence }, random(2) === 0] : [{ type, op: '', fence }]
    })
    expect(Math.min(found.linearizable, found.not)).toBeGreaterThan(300)
  })
})

describe('runs of a correct lock', () => {
  /**
   * One hold after the other, told by those who had them: calls come before what they do, and answers after it. The lock is free
   * from `free` on, and each process goes on from where it was in `readyAt`.
   */
  function correctRun(seed: number, processes: number, holds: number): Event[] {
    const random = randomOf(seed)
    const names = Array.from({ length: processes }, (_, i) => `p${i}`)
    const readyAt = names.map(() => 0)
    const events: Event[] = []
    let free = 0
    let fence = 0n
    for (let i = 0; i < holds; i++) {
      const p = random(processes)
      const worker = names[p]!
      const about = (at: number) => ({ at: BigInt(at), worker, op: `op${i}`, key: 'k' })
      const asked = readyAt[p]! + random(5)
      events.push({ type: 'asked', ...about(asked), workload: 'fenced' })
      if (random(10) === 0) {
        readyAt[p] = asked + random(100)
        events.push({ type: 'refused', ...about(readyAt[p]!), error: 'LockNotAcquiredError' })
        continue
      }
      const taken = Math.max(free, asked) + 1 + random(5)
      const granted = taken + random(20)
      fence += BigInt(TURNS * (1 + random(3)))
      events.push({ type: 'granted', ...about(granted), fence })
      const how = (['lost', 'failed', 'killed', ...Array.from({ length: 7 }, () => 'released' as const)] as const)[random(10)]!
      const releasing = granted + random(10)
      free = how === 'lost' || how === 'killed' ? taken + random(40) : releasing + random(how === 'failed' ? 60 : 10)
      readyAt[p] = Math.max(free, releasing) + random(20)
      const since = granted + random(10)
      const isHeld = since <= Math.min(free, releasing)
      if (isHeld) events.push({ type: 'confirmed', ...about(since + random(5)), since: BigInt(since) })
      if (how === 'killed') {
        events.push({ type: 'ended', at: BigInt(granted + random(20)), worker, how: 'killed' })
        names[p] = `${worker}'`
        continue
      }
      if (how === 'lost') events.push({ type: 'lost', ...about(Math.max(free, releasing)), error: 'OwnershipLostError' })
      const calledAt = how === 'lost' ? Math.max(free, releasing) : releasing
      events.push({ type: 'releasing', ...about(calledAt) })
      events.push({ type: 'released', ...about(readyAt[p]!), ours: how === 'failed' ? 'BackendError' : how === 'released' })
    }
    return events
  }

  /** One answer is another than it was. */
  function corrupt(history: readonly LockOperation[], random: (below: number) => number): LockOperation[] {
    const known = history.filter(({ returnedAt }) => returnedAt !== undefined)
    const victim = known[random(known.length)]!
    const by = BigInt(TURNS * [-3, -2, -1, 1, 2, 3][random(6)]!)
    const other = typeof victim.output === 'bigint' ? victim.output + by : !victim.output
    return history.map((one) => (one === victim ? { ...one, output: other } : one))
  }

  const isTimeOut = (verdict: Verdict<unknown, unknown, unknown>): boolean => !verdict.ok && verdict.timedOut

  const ROUNDS = 200

  it('are always found to be right', () => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const history = lockHistory(correctRun(seed, 2 + (seed % 9), 60), 'k')
      expect(history.length).toBeGreaterThan(90)
      const verdict = check(history, lockModel, { ...WITHIN, windowSize: [10, 50, Infinity][seed % 3]! })
      expect(verdict, `seed ${seed}`).toEqual({ ok: true })
    }
  })

  it('are mostly found to be wrong with one answer changed', () => {
    let found = 0
    for (let seed = 0; seed < ROUNDS; seed++) {
      const history = corrupt(lockHistory(correctRun(seed, 2 + (seed % 9), 60), 'k'), randomOf(seed))
      const verdict = check(history, lockModel, { ...WITHIN, windowSize: [10, 50, Infinity][seed % 3]! })
      expect(isTimeOut(verdict)).toBe(false)
      if (!verdict.ok) found++
    }
    // 187. Most of the others were lost, and could have been released as well: they may just have lasted until then.
    expect(found / ROUNDS).toBeGreaterThan(0.9)
  })

  it.each([250, Infinity])('of 1,000 operations by 8 processes are judged in time, in windows of %d', (windowSize) => {
    const history = lockHistory(correctRun(1, 8, 600), 'k')
    expect(history.length).toBeGreaterThan(1_000)
    const from = performance.now()
    expect(check(history, lockModel, { ...WITHIN, windowSize })).toEqual({ ok: true })
    const last = history.findLast(({ input }) => input.type === 'acquire')
    const wrong = history.map((one) => (one === last ? { ...one, output: 1n } : one))
    expect(check(wrong, lockModel, { ...WITHIN, windowSize })).toMatchObject({ ok: false, timedOut: false })
    expect(performance.now() - from).toBeLessThan(5_000)
  })

  it('of 30 processes are judged in time, though the store may have forgotten any of their holds', () => {
    const fault: Event = { type: 'fault', at: 0n, fault: 1, name: 'failover', target: 'redis', forgets: true }
    const history = lockHistory([fault, ...correctRun(1, 30, 600)], 'k')
    expect(history.length).toBeGreaterThan(1_000)
    expect(check(history, lockModel, WITHIN)).toEqual({ ok: true })
  })

  it('are judged in time, though many releases hang before they say that it was lost', () => {
    const history = Array.from({ length: 300 }, (_, i): LockOperation[] => {
      const [op, fence, at] = [`op${i}`, BigInt(i + 1), 10 * i]
      return [
        operation(op, { type: 'acquire', op }, fence, at, at + 2),
        operation(op, { type: 'expire', op, fence }, undefined, at),
        operation(op, { type: 'release', op, fence }, false, at + 5, at + 300),
      ]
    }).flat()
    expect(check(history, lockModel, WITHIN)).toEqual({ ok: true })
    const again = operation('again', { type: 'acquire', op: 'again' } as const, 200n, 2_993, 2_994)
    expect(check([...history, again], lockModel, WITHIN)).toMatchObject({ ok: false, timedOut: false, stuckAt: [again] })
  })
})
