/**
 * The memory backend against a model with time: random commands on a clock that the test sets, every answer and wake-up
 * compared. The model knows nothing of the backend's data structures: it is a list per resource, gone through from the start
 * on every step.
 */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { Backend, BackendFactory, Claim, ResourceState, WakeUp } from '../../src/core/backend.js'

interface Entry {
  id: string
  owner: string
  readonly take: number
  readonly ttlMs: number
  readonly ticket: number
  /** When it came to wait, among all. */
  readonly joined: number
  state: 'waiting' | 'held' | 'revoked'
  epoch: bigint
  grantedAt: number
  expiresAt: number
}

class TimedModel {
  now = 0
  wakeUps: [owner: string, wakeUp: WakeUp][] = []
  readonly #resources = new Map<string, { limit: number; entries: Entry[] }>()
  #epoch: bigint
  #ticket = 0
  #joined = 0

  constructor(lastEpoch: bigint) {
    this.#epoch = lastEpoch
  }

  claim(owner: string, { id, resource, take, limit, ttlMs }: Claim, ifBusy: 'queue' | 'leave', oldTicket?: number) {
    if (take > limit) return { status: 'failed' }
    this.#settle(resource)
    if ((this.#resources.get(resource)?.limit ?? limit) !== limit) return { status: 'failed' }
    const { entries } = this.#get(resource, limit)
    const mine = entries.find((entry) => entry.id === id)
    if (mine?.state === 'revoked') return { status: 'revoked', epoch: mine.epoch }
    if (mine?.state === 'held') {
      mine.expiresAt = Math.max(mine.expiresAt, this.now + ttlMs)
      return { status: 'held', epoch: mine.epoch, waiting: this.#waiting(resource).length }
    }
    const taken = entries.some((entry) => entry.state === 'waiting' && entry.ticket === oldTicket)
    const ticket = mine?.ticket ?? (taken || oldTicket === undefined ? ++this.#ticket : oldTicket)
    if (!mine) {
      entries.push({
        id, owner, take, ttlMs, ticket, joined: ++this.#joined, state: 'waiting', epoch: 0n, grantedAt: 0, expiresAt: 0,
      })
      // Its own answer says so.
      const toldBefore = this.wakeUps.length
      this.#settle(resource)
      const granted = this.#find(resource, id)!
      if (granted.state === 'held') {
        this.wakeUps.length = toldBefore
        return { status: 'held', epoch: granted.epoch, waiting: this.#waiting(resource).length }
      }
    }
    if (ifBusy === 'queue') {
      if (this.#waiting(resource).every((other) => other.ticket >= ticket)) this.#hint(resource)
      return { status: 'queued', ticket, ...this.#blocker(resource, ticket) }
    }
    this.#remove(resource, id)
    return { status: 'refused', ...this.#blocker(resource, ticket) }
  }

  #hint(resource: string): void {
    for (const { owner, id, state } of this.#held(resource)) {
      if (state === 'held') this.wakeUps.push([owner, { kind: 'contended', resource, claimId: id }])
    }
  }

  /** The token of whatever has this id, as if it were that owner's. */
  tokenOf(resource: string, id: string, owner: string): string {
    return `${id}.${this.#find(resource, id)?.epoch ?? 0n}.${owner}`
  }

  renew(owner: string, resource: string, id: string, ttlMs: number, exact: boolean, from?: string) {
    this.#settle(resource)
    const given = this.#find(resource, id) ? undefined : this.#held(resource).find((e) => `${e.id}.${e.epoch}.${e.owner}` === from)
    if (given?.state === 'revoked') return { status: 'revoked' }
    if (given?.state === 'held') Object.assign(given, { id, owner })
    const mine = this.#find(resource, id)
    if (mine === undefined || mine.state === 'waiting' || mine.owner !== owner) return { status: 'lost' }
    if (mine.state === 'revoked') return { status: 'revoked' }
    mine.expiresAt = exact ? this.now + ttlMs : Math.max(mine.expiresAt, this.now + ttlMs)
    return { status: 'held', waiting: this.#waiting(resource).length }
  }

  release(resource: string, id: string) {
    this.#settle(resource)
    const mine = this.#find(resource, id)
    this.#remove(resource, id)
    return { status: mine && mine.state !== 'waiting' ? 'released' : 'not-held' }
  }

  revoke(resource: string, when: 'told' | 'now') {
    this.#settle(resource)
    const held = this.#held(resource)
    if (held.length === 0) return 'free'
    for (const entry of held) {
      entry.state = 'revoked'
      this.wakeUps.push([entry.owner, { kind: 'revoked', resource, claimId: entry.id }])
      if (when === 'now') this.#resources.get(resource)!.entries = this.#waiting(resource)
    }
    this.#settle(resource)
    return when === 'now' ? 'freed' : 'told'
  }

  close(owner: string) {
    const leaves = (entry: Entry) => entry.owner === owner && entry.state === 'waiting'
    const firstToLeave = ({ entries }: { entries: Entry[] }) => Math.min(...entries.filter(leaves).map(({ joined }) => joined))
    const touched = [...this.#resources].filter(([, { entries }]) => entries.some(leaves))
    // Epochs are counted over all resources, so their order matters.
    touched.sort(([, a], [, b]) => firstToLeave(a) - firstToLeave(b))
    for (const [, resource] of touched) resource.entries = resource.entries.filter((entry) => !leaves(entry))
    for (const [resource] of touched) this.#settle(resource)
    this.wakeUps = this.wakeUps.filter(([told]) => told !== owner)
  }

  inspect(prefix: string) {
    const keys = [...this.#resources.keys()].filter((key) => key.startsWith(prefix))
    for (const key of keys) this.#settle(key)
    return keys.filter((key) => this.#resources.has(key)).sort().map((key) => ({
      key,
      limit: this.#resources.get(key)!.limit,
      holders: this.#held(key).map((entry) => ({ ...this.#describe(entry), take: entry.take })),
      waiters: this.#waiting(key).map(({ owner, take }) => ({ owner, take })),
    }))
  }

  #settle(resource: string): void {
    const found = this.#resources.get(resource)
    if (!found) return
    found.entries = found.entries.filter((entry) => entry.state === 'waiting' || entry.expiresAt > this.now)
    for (const entry of this.#waiting(resource)) {
      const used = this.#held(resource).reduce((sum, { take }) => sum + take, 0)
      if (used + entry.take > found.limit) break
      Object.assign(entry, { state: 'held', epoch: ++this.#epoch, grantedAt: this.now, expiresAt: this.now + entry.ttlMs })
      this.wakeUps.push([entry.owner, {
        kind: 'granted', resource, claimId: entry.id, epoch: entry.epoch, since: this.now + LOCAL_CLOCK_AHEAD,
        waiting: this.#waiting(resource).length,
      }])
    }
    if (found.entries.length === 0) this.#resources.delete(resource)
  }

  #blocker(resource: string, ticket: number) {
    const [first] = this.#held(resource).sort((a, b) => a.expiresAt - b.expiresAt || Number(a.epoch - b.epoch))
    const waiting = this.#waiting(resource)
    return {
      holder: first && this.#describe(first),
      ahead: waiting.filter((entry) => entry.ticket < ticket).length,
      waiting: waiting.filter((entry) => entry.ticket !== ticket).length,
    }
  }

  #describe(entry: Entry) {
    const { owner, epoch, grantedAt, expiresAt } = entry
    return { owner, epoch, heldForMs: this.now - grantedAt, expiresInMs: expiresAt - this.now }
  }

  #get(resource: string, limit: number) {
    if (!this.#resources.has(resource)) this.#resources.set(resource, { limit, entries: [] })
    return this.#resources.get(resource)!
  }

  #find(resource: string, id: string): Entry | undefined {
    return this.#resources.get(resource)?.entries.find((entry) => entry.id === id)
  }

  #remove(resource: string, id: string): void {
    const found = this.#resources.get(resource)
    if (found) found.entries = found.entries.filter((entry) => entry.id !== id)
    this.#settle(resource)
  }

  #held(resource: string): Entry[] {
    const entries = this.#resources.get(resource)?.entries ?? []
    return entries.filter(({ state }) => state !== 'waiting').sort((a, b) => Number(a.epoch - b.epoch))
  }

  #waiting(resource: string): Entry[] {
    const entries = this.#resources.get(resource)?.entries ?? []
    return entries.filter(({ state }) => state === 'waiting').sort((a, b) => a.ticket - b.ticket)
  }
}

/** The processes' own clock and the store's are not the same. */
const LOCAL_CLOCK_AHEAD = 5_000

const who = fc.nat(2)
const key = fc.constantFrom('k', 'kk')
const id = fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f')
/** A claim that is taken over gets an id of its own. */
const takenId = fc.constantFrom('x', 'y', 'z')
const ttlMs = fc.constantFrom(10, 20, 50)
const command = fc.oneof(
  { weight: 8, arbitrary: fc.record({
    do: fc.constant('claim' as const), who, key, id, take: fc.constantFrom(1, 1, 2, 3), limit: fc.constantFrom(3, 3, 3, 3, 2),
    ttlMs, ifBusy: fc.constantFrom('queue', 'queue', 'queue', 'leave'), withPlace: fc.boolean(),
  }) },
  { weight: 4, arbitrary: fc.record({
    do: fc.constant('renew' as const), who, key, id: fc.oneof(id, takenId), ttlMs, exact: fc.boolean(),
  }) },
  { weight: 2, arbitrary: fc.record({
    do: fc.constant('take over' as const), who, key, id: takenId, ttlMs, from: fc.record({ who, id: fc.oneof(id, takenId) }),
  }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('release' as const), who, key, id: fc.oneof(id, takenId) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('revoke' as const), who, key, when: fc.constantFrom('told', 'now') }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('advance' as const), ms: fc.constantFrom(1, 5, 10, 30) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('close' as const), who }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('inspect' as const), who, prefix: fc.constantFrom('', 'k', 'kk') }) },
)
type Command = typeof command extends fc.Arbitrary<infer T> ? T : never

it('does what the model does, whatever the commands and however time passes', async () => {
  await fc.assert(fc.asyncProperty(fc.array(command, { maxLength: 80, size: 'max' }), run), { numRuns: 1_000 })
})

async function run(commands: Command[]): Promise<void> {
  const time = { now: () => 0 }
  const factory = memoryBackend({ now: () => time.now() })
  const model = new TimedModel(await lastEpochOf(factory))
  time.now = () => model.now
  const wakeUps: [string, WakeUp][] = []
  let opened = 0
  const open = () => {
    const owner = `process-${opened++}`
    const clock = { now: () => model.now + LOCAL_CLOCK_AHEAD, timer: () => ({ cancel() {} }) }
    const backend: Backend = factory({
      prefix: 'p', owner, clock, retryMs: 50, wake: (wakeUp) => wakeUps.push([owner, wakeUp]), warn: () => {},
    })
    return { owner, backend }
  }
  const processes = [open(), open(), open()]
  /** The place that the store told of a claim, and what it is in the model. */
  const places = new Map<string, { place: string; ticket: number }>()

  for (const command of commands) {
    const process = processes['who' in command ? command.who : 0]!
    const { owner, backend } = process
    switch (command.do) {
      case 'claim': {
        const { key, id, take, limit, ttlMs, ifBusy } = command
        const known = command.withPlace ? places.get(`${key} ${id}`) : undefined
        const claim: Claim = { id, resource: key, take, limit, ttlMs, ...(known && { place: known.place }) }
        const [state] = await backend.claim([claim], ifBusy)
        const expected = model.claim(owner, claim, ifBusy, known?.ticket)
        if (state!.status === 'queued' && 'ticket' in expected) {
          const { place, ...rest } = state!
          const { ticket, ...restExpected } = expected
          expect(rest).toEqual(restExpected)
          places.set(`${key} ${id}`, { place, ticket })
        } else if (state!.status === 'failed') {
          expect(state!.error.code).toBe('CONFIGURATION')
          expect(expected.status).toBe('failed')
        } else {
          expect(state).toEqual(expected)
        }
        break
      }
      case 'renew': {
        const { key, id, ttlMs, exact } = command
        const renewal = { claim: claimOf(key, id), ttlMs, exact }
        expect(await backend.renew([renewal])).toEqual([model.renew(owner, key, id, ttlMs, exact)])
        break
      }
      case 'take over': {
        const { key, id, ttlMs } = command
        const from = model.tokenOf(key, command.from.id, processes[command.from.who]!.owner)
        const renewal = { claim: claimOf(key, id), ttlMs, exact: false, from }
        expect(await backend.renew([renewal])).toEqual([model.renew(owner, key, id, ttlMs, false, from)])
        break
      }
      case 'release':
        expect(await backend.release([claimOf(command.key, command.id)])).toEqual([model.release(command.key, command.id)])
        break
      case 'revoke':
        expect(await backend.revoke(command.key, command.when)).toBe(model.revoke(command.key, command.when))
        break
      case 'advance':
        model.now += command.ms
        break
      case 'close':
        await backend.close()
        model.close(owner)
        processes[command.who] = open()
        break
      case 'inspect': {
        const shown: ResourceState[] = []
        for await (const resource of backend.inspect(command.prefix)) shown.push(resource)
        expect(shown.sort((a, b) => (a.key < b.key ? -1 : 1))).toEqual(model.inspect(command.prefix))
      }
    }
    // Nothing is told to a process that has closed, though what it holds can be revoked.
    const present = new Set(processes.map((one) => one.owner))
    expect(wakeUps.splice(0)).toEqual(model.wakeUps.splice(0).filter(([told]) => present.has(told)))
  }
}

/** Where a store begins to count is its own affair. */
async function lastEpochOf(factory: BackendFactory): Promise<bigint> {
  const clock = { now: () => 0, timer: () => ({ cancel() {} }) }
  const backend = factory({ prefix: 'elsewhere', owner: 'nobody', clock, retryMs: 50, wake: () => {}, warn: () => {} })
  const [state] = await backend.claim([claimOf('key', 'id')], 'leave')
  return state?.status === 'held' ? state.epoch : expect.unreachable('it is free')
}

function claimOf(resource: string, id: string): Claim {
  return { id, resource, take: 1, limit: 3, ttlMs: 10 }
}
