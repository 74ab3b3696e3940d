/** The checker of what leaders say, on logs that are known to be bad. */
import { describe, expect, it } from 'vitest'
import { faultsOf, type CandidateEvent } from '../support/candidates.js'

const said = (type: CandidateEvent['type'], pid: number, rev: bigint, at: bigint): CandidateEvent => ({ type, pid, rev, fence: rev * 1_024n, at })
const good = [said('elected', 1, 1n, 10n), said('tick', 1, 1n, 11n), said('elected', 2, 3n, 20n), said('tick', 2, 3n, 21n)]

describe('what leaders said', () => {
  it('is well if one comes after the other, and who has lost says so later', () => {
    expect(faultsOf(good)).toEqual([])
    expect(faultsOf([...good, said('lost', 1, 1n, 30n), { type: 'failed', pid: 1, at: 31n, error: 'x' }])).toEqual([])
  })

  it.each([
    ['two of one term', [said('elected', 2, 1n, 12n)], 'two leaders'],
    ['one that speaks after the next', [said('tick', 1, 1n, 22n)], 'tick of 1 in term 1'],
    ['a term that is before the last', [said('elected', 3, 2n, 30n)], 'elected of 3 in term 2'],
    ['a fence that goes back', [{ ...said('elected', 3, 4n, 30n), fence: 5n }], 'fence 5'],
  ])('is not well with %s', (_, more, fault) => {
    expect(faultsOf([...good, ...more]).join()).toContain(fault)
  })
})
