/** What the cases need that speak to managers: names, sessions, elections, and ways to wait. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Backend } from '../core/backend.js'
import { NotLeaderError, SessionExpiredError } from '../core/errors.js'
import type { LockManager } from '../lock-manager.js'
import { Election, type Leader } from '../primitives/election.js'
import type { Session, WaitOptions } from '../primitives/session.js'
import { LONG_MS, show, type World } from './harness.js'

/** For what has to happen, however slow the machine. */
const PATIENCE_MS = 15_000
/** A moment in which what must not happen has the opportunity to. */
const MOMENT_MS = 60
const POLL_MS = 10
/** Of a session that is to die; longer if that is not enough for it to begin. */
const SHORTEST_MS = 500

/** A name of the world's own. On etcd, mutexes and elections are where they say, whatever the manager's prefix. */
export function nameIn(world: World, name: string): string {
  return `${world.prefix}/${name}`
}

/** The TTL of a session that is to die. */
export function dyingMs({ traits }: World): number {
  return Math.max(traits.minTtlMs, SHORTEST_MS)
}

/** A session of a process of its own, which does not end by itself. */
export async function sessionOf(world: World, ttlMs = LONG_MS): Promise<Session> {
  return (await world.locks()).session({ ttlMs })
}

export function sessionsOf(world: World, count: number): Promise<Session[]> {
  return Promise.all(Array.from({ length: count }, () => sessionOf(world)))
}

/** A session that is to die, when it has begun with what it is for. A slow machine may end it before that: then a longer one does. */
export async function dyingSession<T>(world: World, begin: (session: Session) => Promise<T>, open = world.locks()): Promise<T> {
  for (let ttlMs = dyingMs(world); ; ttlMs *= 2) {
    try {
      return await begin(await (await open).session({ ttlMs }))
    } catch (error) {
      if (!(error instanceof SessionExpiredError || error instanceof NotLeaderError)) throw error
    }
  }
}

/** One of each session, or `count` in turn. */
export function electionsOf(sessions: readonly Session[], prefix: string, count = sessions.length): [Election, Election, Election, ...Election[]] {
  const all = Array.from({ length: count }, (_, i) => new Election(sessions[i % sessions.length]!, prefix))
  return all as [Election, Election, Election, ...Election[]]
}

export async function within<T>(what: string, work: Promise<T>, ms = PATIENCE_MS): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const tooLate = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${ms} ms`)), ms)
  })
  try {
    return await Promise.race([work, tooLate])
  } finally {
    clearTimeout(timer)
  }
}

export async function eventually(what: string, reached: () => boolean | Promise<boolean>): Promise<void> {
  const giveUpAt = performance.now() + PATIENCE_MS
  while (!(await reached())) {
    if (performance.now() > giveUpAt) assert.fail(`waited ${PATIENCE_MS} ms in vain: ${what}`)
    await sleep(POLL_MS)
  }
}

/** That it does not settle; for as long as a test can wait for nothing. */
export async function stillWaits(what: string, work: Promise<unknown>): Promise<void> {
  const settled = await Promise.race([work.then(() => true, () => true), sleep(MOMENT_MS, false)])
  assert.equal(settled, false, `${what} still waits`)
}

/** Until exactly so many wait for it. (etcd's own lines have no `/` at their end.) */
export async function queued(world: World, locks: LockManager, name: string, count: number): Promise<void> {
  const keys = [name, `${nameIn(world, name)}/`]
  await eventually(`${count} to wait for ${name}`, async () => {
    for await (const { key, waiters } of locks.inspect()) if (keys.includes(key)) return waiters.length === count
    return count === 0
  })
}

/** What a promise was rejected with. */
export async function rejection(work: Promise<unknown>): Promise<unknown> {
  const nothing = Symbol('nothing')
  const error = await within('a rejection', work.then(() => nothing, (reason: unknown) => reason))
  assert.notEqual(error, nothing, 'it was expected to be rejected')
  return error
}

/** Of a leader, all but when it was heard. */
export function shown({ value, key, rev }: { readonly value: string; readonly key: string; readonly rev: bigint }): unknown[] {
  return [value, key, rev]
}

/** Something that happens before what a leader says reaches the store. */
export function beforeItSpeaks({ board, store }: Backend, happens: () => Promise<void>): Partial<Backend> {
  if (board) {
    return {
      board: {
        announce: async (...args) => (await happens(), board.announce(...args)),
        proclaim: async (...args) => (await happens(), board.proclaim(...args)),
        leader: (resource) => board.leader(resource),
        observe: (resource, signal) => board.observe(resource, signal),
      },
    }
  }
  return { store: { read: (keys, at) => store!.read(keys, at), commit: async (commit) => (await happens(), store!.commit(commit)) } }
}

/** What was seen of an election so far; until `stop`, or its end. */
export class Observer {
  readonly leaders: Leader[] = []
  /** Settles when it has ended by itself. */
  readonly ended: Promise<void>
  readonly #controller = new AbortController()

  constructor(election: { observe(options?: WaitOptions): AsyncIterable<Leader> }) {
    this.ended = this.#run(election.observe({ signal: this.#controller.signal }))
    this.ended.catch(() => {})
  }

  get values(): string[] {
    return this.leaders.map(({ value }) => value)
  }

  async #run(leaders: AsyncIterable<Leader>): Promise<void> {
    for await (const leader of leaders) this.leaders.push(leader)
  }

  /** Until that is the last that it has seen. */
  async sees(value: string): Promise<Leader> {
    await eventually(`"${value}" to be seen, after ${JSON.stringify(this.values)}`, () => this.values.at(-1) === value)
    return this.leaders.at(-1)!
  }

  async stop(): Promise<void> {
    this.#controller.abort()
    await within('the end of it', this.ended)
  }

  /** That nothing was taken back: what is seen later is of the same leader or a later one, and was said later. */
  assertInOrder(): void {
    for (const [i, { rev, header }] of this.leaders.entries()) {
      const before = this.leaders[i - 1]
      if (before) assert.ok(rev >= before.rev && header.revision > before.header.revision, `in order: ${show(this.leaders)}`)
    }
  }
}
