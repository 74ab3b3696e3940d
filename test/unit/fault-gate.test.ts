import { describe, expect, it } from 'vitest'
import { Gate, type GateMode } from '../fault/gate.js'
import type { Event } from '../fault/history.js'

function gateOf(mode: GateMode = 'advances on reads') {
  const log: Event[] = []
  const gate = new Gate(mode, (event) => log.push(event))
  const read = (fence: bigint, workload: 'fenced' | 'unfenced' = 'fenced') => gate.visit({ what: 'read', op: `r${fence}`, key: 'k', fence, workload })
  const write = (fence: bigint, base: number, workload: 'fenced' | 'unfenced' = 'fenced') =>
    gate.visit({ what: 'write', op: `w${fence}`, key: 'k', fence, workload, base })
  return { log, read, write }
}

const lost = (log: readonly Event[]) => log.filter((event) => event.type === 'wrote' && event.lostUpdate)

describe('a gate that checks fences', () => {
  it('lets a holder read and write', () => {
    const { read, write, log } = gateOf()
    expect(read(1n)).toEqual({ accepted: true, value: 0 })
    expect(write(1n, 0)).toEqual({ accepted: true, value: 1 })
    expect(read(2n)).toEqual({ accepted: true, value: 1 })
    expect(lost(log)).toEqual([])
  })

  it('refuses one who was overtaken, also if the other has only read so far', () => {
    const { read, write, log } = gateOf()
    read(1n)
    read(2n)
    expect(write(1n, 0)).toEqual({ accepted: false, value: 0 })
    expect(write(2n, 0)).toEqual({ accepted: true, value: 1 })
    expect(read(1n).accepted).toBe(false)
    expect(lost(log)).toEqual([])
  })

  it('loses an update if it looks at writes only', () => {
    const { read, write, log } = gateOf('write-only')
    read(1n)
    read(2n)
    expect(write(1n, 0).accepted).toBe(true)
    expect(write(2n, 0).accepted).toBe(true)
    expect(lost(log)).toMatchObject([{ op: 'w2' }])
  })

  it('is no gate for those who come without a fence', () => {
    const { read, write, log } = gateOf()
    read(1n, 'unfenced')
    read(2n, 'unfenced')
    write(2n, 0, 'unfenced')
    expect(write(1n, 0, 'unfenced').accepted).toBe(true)
    expect(lost(log)).toMatchObject([{ op: 'w1' }])
  })
})
