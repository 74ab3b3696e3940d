/**
 * What the locks guard: registers that are read and written through a gate, as data in a database would be. The gate refuses whoever
 * comes with a fence lower than it has seen. It advances on reads as well: else one who reads, is overtaken and writes would undo what
 * the other has written.
 */
import type { Event, Workload } from './history.js'
import type { Left } from './orphans.js'

export interface Visit {
  readonly what: 'read' | 'write'
  readonly op: string
  readonly key: string
  readonly fence: bigint
  readonly workload: Workload
  /** What a writer has read before. */
  readonly base?: number
}

/** What else a process asks of the nemesis. */
export type Errand =
  | ({ readonly what: 'leave'; readonly key: string } & Left)
  | { readonly what: 'find'; readonly key: string }
  | { readonly what: 'generation' }

export interface Answer {
  readonly accepted: boolean
  readonly value: number
}

/** `write-only` is a known mistake, for a run that has to fail. */
export type GateMode = 'advances on reads' | 'write-only'

interface Register {
  value: number
  fence: bigint
}

export class Gate {
  readonly #registers = new Map<string, Register>()
  readonly #mode: GateMode
  readonly #log: (event: Event) => void

  constructor(mode: GateMode, log: (event: Event) => void) {
    this.#mode = mode
    this.#log = log
  }

  visit(visit: Visit): Answer {
    const { op, key, fence, workload } = visit
    const register = this.#registerOf(key)
    const accepted = workload === 'unfenced' || fence >= register.fence
    const at = process.hrtime.bigint()
    if (visit.what === 'read') {
      if (accepted && this.#mode === 'advances on reads') register.fence = max(fence, register.fence)
      this.#log({ type: 'read', at, op, key, fence, accepted, value: register.value })
      return { accepted, value: register.value }
    }
    const lostUpdate = accepted && visit.base !== register.value
    if (accepted) {
      register.fence = max(fence, register.fence)
      register.value = (visit.base ?? 0) + 1
    }
    this.#log({ type: 'wrote', at, op, key, fence, accepted, value: register.value, lostUpdate })
    return { accepted, value: register.value }
  }

  #registerOf(key: string): Register {
    let register = this.#registers.get(key)
    if (!register) this.#registers.set(key, (register = { value: 0, fence: -1n }))
    return register
  }
}

function max(a: bigint, b: bigint): bigint {
  return a > b ? a : b
}
