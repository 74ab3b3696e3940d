/**
 * Random commands, of three processes on three resources, with every answer compared with the model's. A seed gives the same
 * commands each time; a failure prints its seed and what was done up to it.
 */
import assert from 'node:assert/strict'
import { ALL_SLOTS, type Claim, type ClaimState } from '../../core/backend.js'
import type { Suite } from '../conformance.js'
import { inTheWay, LONG_MS, show, type Process, type World } from '../harness.js'
import { Model } from '../model.js'

const SEQUENCES = 200
/** Each test is short enough for a runner's time limit, on a store that takes a millisecond per command. */
const SEQUENCES_PER_TEST = 20
const COMMANDS = 30

export function sequences({ traits, theme, test }: Suite): void {
  // The model is a queue, so it has nothing to say about a backend that is none.
  if (!traits.fair) return
  theme('sequences of commands do what the model does', () => {
    for (let first = 1; first <= SEQUENCES; first += SEQUENCES_PER_TEST) {
      const last = first + SEQUENCES_PER_TEST - 1
      test(`seeds ${first} to ${last}`, async (world) => {
        const processes = await world.three()
        for (let seed = first; seed <= last; seed++) await new Sequence(world, processes, seed).run()
      })
    }
  })
}

interface Made {
  /** What the log calls it. */
  readonly name: string
  readonly claim: Claim
  readonly process: Process
}

/** The common ones more often. */
const COMMAND_NAMES = [
  'queue', 'queue', 'queue', 'again', 'leave', 'renew', 'release', 'release', 'release', 'revoke',
] as const

class Sequence {
  readonly #world: World
  readonly #processes: readonly Process[]
  readonly #seed: number
  readonly #random: () => number
  readonly #keys: readonly string[]
  readonly #model = new Model()
  readonly #made: Made[] = []
  readonly #log: string[] = []
  /** The claims that have held, by resource, in the order of their grants; and the epochs known of them. */
  readonly #grants = new Map<string, string[]>()
  readonly #epochs = new Map<string, bigint>()

  constructor(world: World, processes: readonly Process[], seed: number) {
    this.#world = world
    this.#processes = processes
    this.#seed = seed
    this.#random = mulberry32(seed)
    this.#keys = ['lock', 'semaphore', 'read-write'].map((kind) => `${seed}:${kind}`)
  }

  async run(): Promise<void> {
    try {
      for (let i = 0; i < COMMANDS; i++) await this.#command()
      await this.#checkAtTheEnd()
      while (this.#live().length > 0) await this.#release(this.#pick(this.#live())!)
      assert.deepEqual(await this.#processes[0]!.inspect(`${this.#seed}:`), [], 'something is left')
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      throw new Error(`Seed ${this.#seed} fails: ${message}\n  ${this.#log.join('\n  ')}`, { cause: error })
    }
  }

  async #command(): Promise<void> {
    const key = this.#pick(this.#keys)!
    const old = this.#pick(this.#made.filter(({ claim }) => claim.resource === key))
    switch (this.#pick(COMMAND_NAMES)) {
      case 'queue':
        return this.#ask(this.#make(key), 'queue')
      case 'leave':
        return this.#ask(this.#make(key), 'leave')
      case 'again': {
        const live = this.#pick(this.#live().filter(({ claim }) => claim.resource === key))
        return live && this.#ask(live, 'queue')
      }
      case 'renew':
        return old && this.#renew(old)
      case 'release':
        return old && this.#release(old)
      case 'revoke':
        return this.#revoke(key)
    }
  }

  async #ask(made: Made, ifBusy: 'queue' | 'leave'): Promise<void> {
    const { claim, process } = made
    const state = await process.ask(claim, ifBusy)
    this.#note(`${made.name} claims ${claim.take} of ${claim.limit} on ${claim.resource}, ${ifBusy}`, state)
    this.#model.claim(process.owner, claim, ifBusy)
    this.#noteGrants(claim.resource)
    this.#compare(made, state, ifBusy)
  }

  #compare({ claim }: Made, state: ClaimState, ifBusy: 'queue' | 'leave'): void {
    const waiters = this.#model.waiters(claim.resource)
    if (this.#model.holds(claim)) {
      assert.deepEqual(state, { status: 'held', epoch: epochOf(state), waiting: waiters.length })
      this.#learn(claim.resource, claim.id, epochOf(state)!)
      return
    }
    const queued = ifBusy === 'queue'
    assert.ok(state.status === (queued ? 'queued' : 'refused'), `the model says ${queued ? 'queued' : 'refused'}`)
    const { owner, ...counts } = inTheWay(state)
    assert.deepEqual(counts, queued
      ? { ahead: waiters.findIndex((other) => other.claim.id === claim.id), waiting: waiters.length - 1 }
      : { ahead: waiters.length, waiting: waiters.length })
    const owners = this.#model.holders(claim.resource).map((holder) => holder.owner)
    assert.ok(owners.includes(owner!), `${owner} does not hold it, but ${owners.join(', ')}`)
  }

  async #renew({ name, claim, process }: Made): Promise<void> {
    const state = await process.renew(claim, LONG_MS)
    this.#note(`${name} renews on ${claim.resource}`, state)
    const waiting = this.#model.waiters(claim.resource).length
    assert.deepEqual(state, this.#model.holds(claim) ? { status: 'held', waiting } : { status: 'lost' })
  }

  async #release({ name, claim, process }: Made): Promise<void> {
    const status = await process.release(claim)
    this.#note(`${name} releases ${claim.resource}`, status)
    assert.equal(status, this.#model.holds(claim) ? 'released' : 'not-held')
    this.#model.release(claim)
    this.#noteGrants(claim.resource)
  }

  async #revoke(key: string): Promise<void> {
    const state = await this.#pick(this.#processes)!.revoke(key, 'now')
    this.#note(`somebody revokes ${key}`, state)
    assert.equal(state, this.#model.holders(key).length > 0 ? 'freed' : 'free')
    this.#model.revoke(key)
    this.#noteGrants(key)
  }

  async #checkAtTheEnd(): Promise<void> {
    for (const { claim, process } of this.#live().filter((made) => this.#model.holds(made.claim))) {
      // Granted in answer to its own request, or told.
      if (!this.#epochs.has(claim.id)) this.#learn(claim.resource, claim.id, (await process.granted(claim)).epoch)
    }
    for (const { claim, process } of this.#made) {
      for (const told of process.told(claim, 'granted')) {
        assert.ok(told.kind === 'granted' && told.resource === claim.resource)
        this.#learn(claim.resource, claim.id, told.epoch)
      }
    }
    const shown = await this.#processes[0]!.inspect(`${this.#seed}:`)
    this.#note('somebody inspects', shown)
    for (const key of this.#keys) {
      const resource = shown.find((one) => one.key === key)
      const seen = (standing: { owner: string | undefined; take: number }) => `${standing.owner} ${standing.take}`
      const expected = (standing: { owner: string; claim: Claim }) => `${standing.owner} ${standing.claim.take}`
      assert.deepEqual((resource?.holders ?? []).map(seen).sort(), this.#model.holders(key).map(expected).sort())
      assert.deepEqual((resource?.waiters ?? []).map(seen), this.#model.waiters(key).map(expected))
    }
  }

  #make(key: string): Made {
    const { counted } = this.#world.traits
    const [, semaphore, readWrite] = this.#keys
    const shape = !counted ? {}
      : key === semaphore ? { limit: 3, take: this.#pick([1, 1, 2, 3])! }
      : key === readWrite ? { limit: ALL_SLOTS, take: this.#pick([1, 1, ALL_SLOTS])! }
      : {}
    const at = Math.floor(this.#random() * this.#processes.length)
    const name = `${'ABC'[at]}${this.#made.length}`
    const made = { name, claim: this.#world.claim(key, shape), process: this.#processes[at]! }
    this.#made.push(made)
    return made
  }

  #live(): Made[] {
    return this.#made.filter(({ claim }) => this.#model.holds(claim) || this.#model.waits(claim))
  }

  #noteGrants(key: string): void {
    const grants = this.#grants.get(key) ?? []
    this.#grants.set(key, grants)
    for (const { claim } of this.#model.holders(key)) if (!grants.includes(claim.id)) grants.push(claim.id)
  }

  /** An epoch stays what it is, and the epochs of a resource are in the order of its grants. */
  #learn(key: string, claimId: string, epoch: bigint): void {
    assert.equal(epoch, this.#epochs.get(claimId) ?? epoch, 'the epoch has changed')
    this.#epochs.set(claimId, epoch)
    const grants = this.#grants.get(key) ?? []
    assert.ok(grants.includes(claimId), 'the model never granted it')
    const known = grants.map((id) => this.#epochs.get(id)).filter((one) => one !== undefined)
    assert.ok(known.every((one, i) => i === 0 || known[i - 1]! < one), `epochs in the order of grants: ${known.join(', ')}`)
  }

  #note(what: string, answer: unknown): void {
    this.#log.push(`${what} → ${show(answer)}`)
  }

  #pick<T>(list: readonly T[]): T | undefined {
    return list[Math.floor(this.#random() * list.length)]
  }
}

function epochOf(state: ClaimState): bigint | undefined {
  return state.status === 'held' ? state.epoch : undefined
}

/** A small generator of random numbers from 0 to 1 that a seed repeats. */
function mulberry32(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
