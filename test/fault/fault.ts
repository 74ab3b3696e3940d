/** What a fault is, and those of its kinds that are done to a server of any sort. */
import { until } from '../support/until.js'
import type { Environment, Server } from './environment.js'
import type { Random } from './random.js'
import { starveFamily } from './starve.js'
import type { TrafficWorker } from './traffic.js'

/** What faults get at. */
export interface Victims {
  readonly environment: Environment
  /** Those that are alive, with the number of the way that each goes. */
  workers(): readonly { readonly worker: TrafficWorker; readonly way: number }[]
  /** Starts another in the place of one that was killed. */
  replace(way: number): Promise<void>
}

export interface Injection {
  /** What it was done to. */
  readonly target: string
  heal(): Promise<void> | void
}

export interface Fault {
  readonly name: string
  /** Of two at once, each has to do with something else. */
  readonly part: 'client' | 'network' | 'server'
  /** The store may lose what it was told: exclusion is not promised then. */
  readonly forgets: (environment: Environment) => boolean
  /** It may still do so for that long after all is healed, if that is longer than is usual. */
  readonly forgetsForMs?: number
  /** Also what was committed, which else nothing takes back. */
  readonly erases?: (environment: Environment) => boolean
  /** From when it has begun until it is healed, its targets hear nothing from the store. */
  readonly cutsOff?: (environment: Environment) => boolean
  readonly isFor: (environment: Environment) => boolean
  begin(victims: Victims, random: Random, ms: number): Promise<Injection>
}

/** The share of its time that is left to one that is starved. */
export const STARVED = 0.1

export const never = () => false
export const always = () => true

export type Promises = Pick<Fault, 'forgets' | 'forgetsForMs' | 'erases' | 'cutsOff' | 'isFor'>
export type Choice = (environment: Environment, random: Random) => Promise<Server>

export function stop(name: string, promises: Promises, choose: Choice): Fault {
  return {
    name, part: 'server', ...promises,
    async begin({ environment }, random) {
      const server = await choose(environment, random)
      await server.pause()
      return { target: String(server.port), heal: () => server.resume() }
    },
  }
}

export function kill(name: string, promises: Promises, choose: Choice): Fault {
  return {
    name, part: 'server', ...promises,
    async begin({ environment }, random) {
      const server = await choose(environment, random)
      await server.kill()
      // Somebody else may have had its port meanwhile.
      return { target: String(server.port), heal: () => until(`${server.port} to be up`, () => server.start().then(() => true)) }
    },
  }
}

export function starved(name: string, promises: Promises, choose: Choice): Fault {
  return {
    name, part: 'server', ...promises,
    async begin({ environment }, random) {
      const server = await choose(environment, random)
      return { target: String(server.port), heal: starveFamily(server.pid, STARVED) }
    },
  }
}
