/** What the processes of a run have to do: locks always, and beside them what follows from the seed. */
import type { BackendName } from './environment.js'
import type { Dealing, Workload } from './history.js'
import { Random } from './random.js'

export interface Work {
  readonly keys: readonly { readonly key: string; readonly workload: Workload }[]
  readonly dealings: readonly Dealing[]
}

export const KINDS = ['mutex', 'election', 'transfers', 'duties'] as const
export type Kind = (typeof KINDS)[number]

const LOCKS: Work['keys'] = [
  { key: 'fenced-1', workload: 'fenced' },
  { key: 'fenced-2', workload: 'fenced' },
  { key: 'long-1', workload: 'long' },
  { key: 'long-2', workload: 'long' },
  { key: 'unfenced', workload: 'unfenced' },
  { key: 'fifo', workload: 'fifo' },
  { key: 'cancelled', workload: 'cancelled' },
]

/** Another count than that of the faults: what is broken when does not depend on it. */
const OWN_SEED = 0x5e55

/** `wanted`: instead of what the seed says. */
export function workOf(backend: BackendName, seed: number, wanted?: readonly Kind[]): Work {
  const possible = KINDS.filter((kind) => backend !== 'cluster' || kind === 'mutex' || kind === 'election')
  const kinds = wanted ?? new Random(seed ^ OWN_SEED).some(possible)
  const has = (kind: Kind) => kinds.includes(kind) && possible.includes(kind)
  return {
    keys: [
      ...LOCKS,
      ...(has('mutex') ? [{ key: 'mutex', workload: 'mutex' } as const] : []),
      ...(has('election') ? [{ key: 'election', workload: 'election' } as const] : []),
    ],
    dealings: [
      ...(['transfers', 'duties'] as const).filter(has),
      ...(has('mutex') && possible.includes('transfers') ? (['owned'] as const) : []),
    ],
  }
}

/** Nothing but leaders who have to be killed. */
export const REIGNS: Work = { keys: [{ key: 'throne', workload: 'reign' }], dealings: [] }
