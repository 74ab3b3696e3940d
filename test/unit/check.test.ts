/** The checkers find what is wrong in logs that are known to be. */
import { describe, expect, test } from 'vitest'
import { inversions, jain, overlaps, type Hold } from '../support/check.js'

const MS = 1_000_000n

/** Times in ms. */
function hold(
  process: string,
  asked: number,
  granted: number,
  released: number | undefined,
  fence: number | bigint,
  key = 'k',
): Hold {
  return {
    key,
    process,
    waiter: 0,
    askedAt: BigInt(asked) * MS,
    grantedAt: BigInt(granted) * MS,
    releasedAt: released === undefined ? undefined : BigInt(released) * MS,
    fence: BigInt(fence),
  }
}

const names = (pairs: readonly { first: Hold; second: Hold }[]): string[] =>
  pairs.map(({ first, second }) => `${first.process} ${second.process}`)

const good = [hold('a', 0, 1, 5, 1), hold('b', 2, 5, 9, 2), hold('c', 3, 9, 12, 3), hold('a', 6, 12, 13, 4)]

describe('overlaps', () => {
  test('none in a good log, whatever its order', () => {
    expect(overlaps(good)).toEqual([])
    expect(overlaps([...good].reverse())).toEqual([])
  })

  test('two at once', () => {
    const found = overlaps([hold('a', 0, 1, 5, 1), hold('b', 2, 4, 9, 2)])
    expect(found).toMatchObject([{ key: 'k', first: { process: 'a' }, second: { process: 'b' }, ns: MS }])
  })

  test('one nanosecond is enough', () => {
    const first = hold('a', 0, 1, 5, 1)
    expect(overlaps([{ ...first, releasedAt: 5n * MS + 1n }, hold('b', 2, 5, 9, 2)])).toHaveLength(1)
  })

  test('every pair, also with others in between', () => {
    const log = [hold('a', 0, 1, 20, 1), hold('b', 2, 4, 6, 2), hold('c', 2, 7, 9, 3), hold('d', 2, 8, 30, 4)]
    expect(names(overlaps(log))).toEqual(['a b', 'a c', 'a d', 'c d'])
  })

  test('one that never ended overlaps everything after it', () => {
    const log = [hold('a', 0, 1, undefined, 1), hold('b', 2, 50, 60, 2), hold('c', 2, 70, undefined, 3)]
    expect(overlaps(log).map(({ ns }) => ns)).toEqual([10n * MS, undefined])
  })

  test('different keys have nothing to do with each other', () => {
    expect(overlaps([hold('a', 0, 1, 5, 1, 'x'), hold('b', 0, 1, 5, 1, 'y')])).toEqual([])
  })
})

describe('inversions', () => {
  test('none in a good log, whatever its order', () => {
    expect(inversions([...good].reverse(), { toleranceMs: 0 })).toEqual({ fence: [], fifo: [] })
  })

  test('a fence that went back, and one that came twice', () => {
    const log = [hold('a', 0, 1, 2, 5), hold('b', 2, 3, 4, 4), hold('c', 4, 5, 6, 5), hold('d', 6, 7, 8, 6)]
    const { fence } = inversions(log, { toleranceMs: 0 })
    expect(names(fence)).toEqual(['b a', 'c a'])
  })

  test('fences that are the same as doubles', () => {
    const log = [hold('a', 0, 1, 2, 2n ** 53n + 1n), hold('b', 2, 3, 4, 2n ** 53n)]
    expect(inversions(log, { toleranceMs: 0 }).fence).toHaveLength(1)
    const sound = log.map((one, i) => ({ ...one, fence: 2n ** 53n + BigInt(i) }))
    expect(inversions(sound, { toleranceMs: 0 }).fence).toEqual([])
  })

  test('somebody overtook', () => {
    const log = [hold('a', 0, 1, 5, 1), hold('late', 30, 31, 40, 2), hold('early', 10, 41, 45, 3)]
    expect(names(inversions(log, { toleranceMs: 0 }).fifo)).toEqual(['early late'])
    expect(names(inversions(log, { toleranceMs: 19 }).fifo)).toEqual(['early late'])
    expect(inversions(log, { toleranceMs: 20 }).fifo).toEqual([])
  })

  test('also long before', () => {
    const log = [hold('late', 30, 31, 32, 1), hold('x', 1, 33, 34, 2), hold('y', 2, 35, 36, 3), hold('z', 31, 37, 38, 4)]
    expect(names(inversions(log, { toleranceMs: 5 }).fifo)).toEqual(['x late', 'y late'])
  })

  test('different keys have nothing to do with each other', () => {
    const log = [hold('a', 5, 6, 7, 9, 'x'), hold('b', 0, 8, 9, 1, 'y')]
    expect(inversions(log, { toleranceMs: 0 })).toEqual({ fence: [], fifo: [] })
  })

  test('20,000 holds are judged in no time', () => {
    const log = Array.from({ length: 20_000 }, (_, i) => hold('a', i, 2 * i + 1, 2 * i + 2, i))
    const from = performance.now()
    expect(overlaps(log)).toEqual([])
    expect(inversions(log, { toleranceMs: 0 })).toEqual({ fence: [], fifo: [] })
    expect(performance.now() - from).toBeLessThan(2_000)
  })
})

test('jain', () => {
  expect(jain([7, 7, 7, 7])).toBe(1)
  expect(jain([9, 0, 0])).toBeCloseTo(1 / 3)
  expect(jain([10, 5])).toBeCloseTo(0.9)
  expect(jain([0, 0])).toBeNaN()
  expect(jain([])).toBeNaN()
})
