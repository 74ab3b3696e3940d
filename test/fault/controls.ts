/**
 * Runs that must fail. A nemesis that finds nothing proves nothing unless it finds what is known to be there: in other libraries, in
 * mistakes that are often made, and in our own code with a mistake put into it.
 */
import type { RunOptions } from './run.js'
import { makeMutant, MUTANTS } from './mutants.js'

export interface Control {
  readonly name: string
  /** The guarantee that it breaks. */
  readonly breaks: string
  /** Whether that takes some luck, and so minutes: then it is looked for in `npm run nemesis` only. */
  readonly isSeldom?: boolean
  options(): Promise<Partial<RunOptions>>
}

const library = (name: string) => new URL(`./controls/${name}.mjs`, import.meta.url).href

export const CONTROLS: readonly Control[] = [
  {
    name: 'redlock 5.0.0-beta.2',
    breaks: 'one holder',
    isSeldom: true,
    options: async () => ({ library: library('redlock'), faults: ['client stop', 'partition'] }),
  },
  {
    name: 'redis-semaphore',
    breaks: 'one holder',
    options: async () => ({ library: library('redis-semaphore'), faults: ['client stop', 'event loop blocked'] }),
  },
  {
    name: 'release by GET and DEL',
    breaks: 'one holder',
    isSeldom: true,
    options: async () => ({ library: library('get-and-del'), faults: ['client stop', 'delay', 'partition'], ttlMs: 500 }),
  },
  {
    name: 'a gate that looks at fences on writes only',
    breaks: 'no lost update',
    isSeldom: true,
    // Long enough that one who was overtaken comes back between another's read and its write.
    options: async () => ({ gate: 'write-only', faults: ['client stop'], workMs: 700 }),
  },
  {
    name: 'WAIT on another connection',
    breaks: 'replicated grants',
    options: async () => ({ backend: 'sentinel', library: library('wait-elsewhere'), faults: ['replicas stop'], waitsForReplicas: true }),
  },
  {
    name: 'an advisory lock through PgBouncer',
    breaks: 'one holder',
    options: async () => ({ backend: 'pgbouncer', library: library('advisory-lock'), faults: ['client stop'] }),
  },
  {
    name: 'a session of etcd without a deadline',
    breaks: 'one holder',
    options: async () => ({ backend: 'etcd', library: library('etcd-session'), faults: ['client stop', 'partition'] }),
  },
  ...MUTANTS.map((mutant) => ({
    name: `mutant: ${mutant.name}`,
    breaks: mutant.breaks,
    isSeldom: mutant.isSeldom ?? false,
    options: async () => ({ backend: mutant.backend ?? 'redis', library: await makeMutant(mutant), faults: mutant.faults, work: mutant.work ?? [] }),
  })),
]
