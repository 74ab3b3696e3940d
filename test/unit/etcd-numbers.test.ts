import { describe, expect, it } from 'vitest'
import { Numbers } from '../../src/backends/etcd/numbers.js'

describe('the numbers of claims', () => {
  it('are as few as there are claims at a time', () => {
    const numbers = new Numbers()
    const [first, second] = [numbers.take('a'), numbers.take('a')]
    expect([first.number, second.number, numbers.take('b').number]).toEqual([1, 2, 1])
    numbers.free('a', first)
    expect(numbers.take('a').number).toBe(1)
  })

  it('begin at the first again when none is in use', () => {
    const numbers = new Numbers()
    const [first, second] = [numbers.take('a'), numbers.take('a')]
    numbers.free('a', first)
    numbers.free('a', second)
    expect(numbers.take('a').number).toBe(1)
  })

  it('are new once something is not known, and what was in use then is not used again', () => {
    const numbers = new Numbers()
    const [first] = [numbers.take('a'), numbers.take('a'), numbers.take('a')]
    numbers.spend()
    const next = numbers.take('a')
    numbers.free('a', first)
    expect([next.number, numbers.take('a').number, numbers.take('b').number]).toEqual([4, 5, 4])
  })
})
