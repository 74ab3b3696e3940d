/**
 * What happened in a run: an append-only log that everything else is judged by. Workers tell of what they do, the gate of what it
 * let through, the nemesis of what it broke.
 *
 * Times are process.hrtime.bigint(), in nanoseconds: one clock for all processes of a machine, which no fault moves.
 */

/** What each guarded operation is about. Every key has its own register behind the gate. */
export type Workload =
  /** Read, change, write, all under a lock and past a gate that checks fences. */
  | 'fenced'
  /** The same, for so long that the lock has to be renewed. */
  | 'long'
  /** The same, past no gate: how often does a lock alone lose an update? */
  | 'unfenced'
  /** First come, first served: `fairness: 'strict'`. */
  | 'fifo'
  /** Many of those who ask leave before they are served. */
  | 'cancelled'
  /** As fenced, by mutexes of sessions that come and go: closed, orphaned, taken up by their lease. */
  | 'mutex'
  /** As fenced, by leaders who say something meanwhile, and with observers. */
  | 'election'
  /** Leaders who do not resign: they have to be killed. */
  | 'reign'

/** Those under which transactions go on: they have no key of their own, and no turn. */
export type Dealing =
  /** From one of a few accounts to another. */
  | 'transfers'
  /** Of two on duty one may go, if the other stays: each reads both, and writes one. */
  | 'duties'
  /** Of those who have a mutex, and only while they have it. */
  | 'owned'

export type Event =
  /** A worker process began or ended; `killed` if the nemesis did it. */
  | { readonly type: 'began'; readonly at: bigint; readonly worker: string }
  | { readonly type: 'ended'; readonly at: bigint; readonly worker: string; readonly how: 'closed' | 'killed' | 'failed'; readonly why?: string }
  /** A caller asked for a key. `op` is unique in the run. */
  | { readonly type: 'asked'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string; readonly workload: Workload }
  /** It holds. `late`: no more, by the time that it heard of it: its process was stopped in that very moment. */
  | {
      readonly type: 'granted'
      readonly at: bigint
      readonly worker: string
      readonly op: string
      readonly key: string
      readonly fence: bigint
      readonly late?: boolean
      /** Of a leader: the term. */
      readonly rev?: bigint
      /** The operation that had left it to its session, if it is still the same hold. */
      readonly takesUp?: string
    }
  /** It does not: it was cancelled, its time was over, or the store failed. */
  | { readonly type: 'refused'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string; readonly error: string }
  /** The handle said, when asked after `since`, that it is held. */
  | { readonly type: 'confirmed'; readonly at: bigint; readonly since: bigint; readonly worker: string; readonly op: string; readonly key: string }
  /** Its signal aborted, or it said that it is not held any more. */
  | { readonly type: 'lost'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string; readonly error: string }
  /** `release` was called, and has answered: true, false, or an error. */
  | { readonly type: 'releasing'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string }
  | { readonly type: 'released'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string; readonly ours: boolean | string }
  /** Its session was orphaned: it does not hold any more, and nothing was released. */
  | { readonly type: 'left'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string }
  /** A leader is about to say the n-th thing of its own, and has been told that it is said. */
  | { readonly type: 'saying' | 'said'; readonly at: bigint; readonly worker: string; readonly op: string; readonly key: string; readonly n: number }
  /** What an observer was told: who leads by which term, and what it says. `blind`: it is told nothing any more. */
  | {
      readonly type: 'observed'
      readonly at: bigint
      readonly worker: string
      readonly observer: string
      readonly key: string
      readonly rev: bigint
      readonly revision: bigint
      /** The operation that said it, and which of its words it is. */
      readonly by: string
      readonly n: number
    }
  | { readonly type: 'blind'; readonly at: bigint; readonly worker: string; readonly observer: string; readonly key: string; readonly error: string }
  /** A transaction is about to be committed; the last of its tries counts. Of each read: key, value, and the revision that wrote it. */
  | {
      readonly type: 'trying'
      readonly at: bigint
      readonly worker: string
      readonly tx: string
      readonly dealing: Dealing
      readonly generation: number
      readonly reads: readonly (readonly [key: string, value: string, revision: bigint])[]
      readonly writes: readonly (readonly [key: string, value: string])[]
    }
  | { readonly type: 'committed'; readonly at: bigint; readonly worker: string; readonly tx: string; readonly revision: bigint; readonly tries: number }
  /** Whether it was committed all the same is not known. */
  | { readonly type: 'uncommitted'; readonly at: bigint; readonly worker: string; readonly tx: string; readonly error: string }
  /** From here on, transactions are about other keys: the store may lose what was committed (odd), or does so no more (even). */
  | { readonly type: 'generation'; readonly at: bigint; readonly generation: number }
  /** The gate, which sees one after the other. A write is refused if its fence is not the highest that it has seen. */
  | { readonly type: 'read'; readonly at: bigint; readonly op: string; readonly key: string; readonly fence: bigint; readonly accepted: boolean; readonly value: number }
  | {
      readonly type: 'wrote'
      readonly at: bigint
      readonly op: string
      readonly key: string
      readonly fence: bigint
      readonly accepted: boolean
      readonly value: number
      /** What the writer had read, if that is not what it overwrites: an update was lost. */
      readonly lostUpdate: boolean
    }
  /**
   * Of the nemesis. `healed` has the number of the fault that it ends. `forgets`: the store may lose what it was told, until for so long
   * after it is healed.
   */
  | {
      readonly type: 'fault'
      readonly at: bigint
      readonly fault: number
      readonly name: string
      readonly target: string
      readonly forgets?: boolean
      readonly forgetsForMs?: number | undefined
      /** When it was in force for certain, if it keeps its targets (all, if they are no workers) from everything that the store says. */
      readonly cutsOffSince?: bigint
    }
  /** `since`: until then it was in force for certain. */
  | { readonly type: 'healed'; readonly at: bigint; readonly fault: number; readonly name: string; readonly since?: bigint }
  /** A process found that it had not run since then: the nemesis stopped it, or the machine has too much to do. */
  | { readonly type: 'stalled'; readonly at: bigint; readonly since: bigint; readonly worker: string }
  /** The same for what all of them go through. */
  | { readonly type: 'stalled'; readonly at: bigint; readonly since: bigint; readonly what: 'the proxies' | 'the store' }
  /** The parts of a run. */
  | { readonly type: 'phase'; readonly at: bigint; readonly name: 'warm-up' | 'faults' | 'recovery' | 'end' }

/** A guarantee that was broken. */
export interface Violation {
  /** Which one, such as `fence order`. */
  readonly invariant: string
  readonly message: string
  readonly at: bigint
  readonly key?: string
  /** Those operations that show it. */
  readonly ops: readonly string[]
}

export interface Run {
  readonly backend: string
  readonly seed: number
  readonly ttlMs: number
  /** What is granted is promised to be on a replica, too. */
  readonly waitsForReplicas?: boolean
  /** By how much longer than its TTL what a killed process held is kept, at most; a second if not given. */
  readonly handOffMs?: number
  /** What the store forgets, it has forgotten as a whole: nothing of it goes on renewing. */
  readonly forgetsAsOne?: boolean
  /** Of a run that is about nothing else: how often a leader was to be killed. */
  readonly failovers?: number
  readonly events: readonly Event[]
  readonly violations: readonly Violation[]
}
