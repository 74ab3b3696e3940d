/** A line of those who wait. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Line, type Linked } from '../../src/core/line.js'

class One implements Linked<One> {
  ahead: One | undefined
  behind: One | undefined
  readonly name: number

  constructor(name: number) {
    this.name = name
  }
}

function lineOf(count: number): { line: Line<One>; ones: One[] } {
  const line = new Line<One>()
  const ones = Array.from({ length: count }, (_, i) => new One(i))
  for (const one of ones) line.join(one)
  return { line, ones }
}

const names = (line: Iterable<One>) => [...line].map(({ name }) => name)

describe('a line', () => {
  it('is empty at first', () => {
    const { line } = lineOf(0)
    expect(line.first).toBeUndefined()
    expect(line.size).toBe(0)
    expect(names(line)).toEqual([])
    expect(names(line.leaving())).toEqual([])
    expect(line.has(new One(0))).toBe(false)
  })

  it('keeps the order of joining', () => {
    const { line, ones } = lineOf(3)
    expect(names(line)).toEqual([0, 1, 2])
    expect(line.first).toBe(ones[0])
    expect(ones.map((one) => line.before(one))).toEqual([0, 1, 2])
  })

  it.each([
    ['the first', 0, [1, 2]],
    ['one in the middle', 1, [0, 2]],
    ['the last', 2, [0, 1]],
  ])('goes on without %s', (_, leaves, left) => {
    const { line, ones } = lineOf(3)
    line.leave(ones[leaves]!)
    expect(names(line)).toEqual(left)
    expect(line.size).toBe(2)
    expect(line.has(ones[leaves]!)).toBe(false)
    line.join(new One(9))
    expect(names(line)).toEqual([...left, 9])
  })

  it('knows the only one in it, who has nobody on either side', () => {
    const { line, ones } = lineOf(1)
    expect(line.has(ones[0]!)).toBe(true)
    line.leave(ones[0]!)
    expect(line.has(ones[0]!)).toBe(false)
    expect(line.size).toBe(0)
  })

  it('does not mind one that leaves a second time, or was never there', () => {
    const { line, ones } = lineOf(3)
    line.leave(ones[1]!)
    line.leave(ones[1]!)
    line.leave(new One(9))
    expect(names(line)).toEqual([0, 2])
    expect(line.size).toBe(2)
  })

  it('takes one back that has left, at its end', () => {
    const { line, ones } = lineOf(3)
    line.leave(ones[0]!)
    line.join(ones[0]!)
    expect(names(line)).toEqual([1, 2, 0])
    expect(line.before(ones[0]!)).toBe(2)
  })

  it('holds on to nobody who has left', () => {
    const { line, ones } = lineOf(3)
    for (const one of ones) line.leave(one)
    for (const { ahead, behind } of ones) expect([ahead, behind]).toEqual([undefined, undefined])
  })

  it('can be walked along while each that is met leaves', () => {
    const { line } = lineOf(4)
    const met: number[] = []
    for (const one of line) {
      met.push(one.name)
      line.leave(one)
    }
    expect(met).toEqual([0, 1, 2, 3])
    expect(line.size).toBe(0)
  })

  it('can be emptied while others leave and join', () => {
    const { line, ones } = lineOf(4)
    const met: number[] = []
    for (const one of line.leaving()) {
      expect(line.has(one)).toBe(false)
      met.push(one.name)
      if (one.name === 0) line.leave(ones[1]!)
      if (one.name === 2) line.join(new One(9))
    }
    expect(met).toEqual([0, 2, 3, 9])
    expect(line.size).toBe(0)
  })

  it('is what an array would be, whatever is done to it', () => {
    const step = fc.record({ action: fc.constantFrom('join', 'leave', 'serve'), who: fc.nat(7) })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const { line } = lineOf(0)
        const ones = Array.from({ length: 8 }, (_, i) => new One(i))
        let model: One[] = []
        for (const { action, who } of steps) {
          const one = action === 'serve' ? model[0] : ones[who]!
          if (!one) continue
          if (action !== 'join') {
            line.leave(one)
            model = model.filter((other) => other !== one)
          } else if (!line.has(one)) {
            line.join(one)
            model.push(one)
          }
          expect(names(line)).toEqual(names(model))
          expect(line.first).toBe(model[0])
          expect(line.size).toBe(model.length)
          for (const each of ones) expect(line.has(each)).toBe(model.includes(each))
          for (const [i, each] of model.entries()) expect(line.before(each)).toBe(i)
        }
      }),
      { numRuns: 300 },
    )
  })
})
