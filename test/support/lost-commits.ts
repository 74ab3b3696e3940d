/** What becomes of a commit that gets lost, or whose answer does, or that comes late, where a store remembers those that were carried out. */
import { randomBytes } from 'node:crypto'
import { expect, it, onTestFinished } from 'vitest'
import type { Backend, BackendFactory, Commit, Held, VersionedStore } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'

/** Whose claims and commits they are. */
export const OWNER = 'host-1'

/** Carries a request out. */
export type Send = () => Promise<unknown>

export interface FaultyStores {
  /** `first`: what becomes of the first request. */
  readonly storeOn: (prefix: string, first?: (send: Send) => Promise<unknown>) => VersionedStore
  /** Where its claims are, with no faults. */
  readonly factory: () => BackendFactory
  /** What its client says of a connection that was cut. */
  readonly cut: () => Error
}

export function commitOf(commit: Partial<Commit>): Commit {
  return { comparisons: [], puts: [], deletes: [], reads: [], ...commit }
}

export function put(key: string, value: string): Commit['puts'][number] {
  return { key, value: Buffer.from(value) }
}

/** What a key has now. */
export async function see(store: VersionedStore, key: string) {
  const { revision, values: [entry] } = (await store.read([key]))!
  return { revision, value: entry && Buffer.from(entry.value).toString(), wroteAt: entry?.revision }
}

/** Until the end of the test. */
export function open(factory: BackendFactory, prefix: string): Backend {
  const backend = factory({ prefix, owner: OWNER, clock: systemClock(), retryMs: 50, wake: () => {}, warn: () => {} })
  onTestFinished(() => backend.close())
  return backend
}

/** A claim that holds, and how it comes to an end. */
export async function hold(backend: Backend): Promise<{ held: Held; release: () => Promise<unknown> }> {
  const claim = { id: randomBytes(16).toString('hex'), resource: 'lock', take: 1, limit: 1, ttlMs: 60_000 }
  const [state] = await backend.claim([claim], 'leave')
  if (state?.status !== 'held') throw new Error(`not held: ${state?.status}`)
  return { held: { claim, epoch: state.epoch }, release: () => backend.release([claim]) }
}

export function lostCommits({ storeOn, factory, cut }: FaultyStores): void {
  it('counts once if its answer is lost', async () => {
    await storeOn('answer').commit(commitOf({ puts: [put('k', '0')] }))
    let carriedOut!: Awaited<ReturnType<typeof see>>
    const store = storeOn('answer', async (send) => {
      await send()
      carriedOut = await see(storeOn('answer'), 'k')
      throw cut()
    })
    const state = await store.commit(commitOf({ puts: [put('k', '1')] }))
    expect(carriedOut.value).toBe('1')
    expect(state).toEqual({ status: 'committed', revision: carriedOut.revision })
    expect(await see(storeOn('answer'), 'k')).toEqual(carriedOut)
  })

  it('is sent again if it was lost itself', async () => {
    const store = storeOn('request', () => Promise.reject(cut()))
    expect((await store.commit(commitOf({ puts: [put('k', '1')] }))).status).toBe('committed')
    expect((await see(store, 'k')).value).toBe('1')
  })

  it('does nothing if it comes after its own repetition', async () => {
    let late!: Send
    const store = storeOn('late', (send) => {
      late = send
      return Promise.reject(cut())
    })
    await store.commit(commitOf({ puts: [put('k', 'ours')] }))
    await store.commit(commitOf({ puts: [put('k', 'theirs')] }))
    const before = await see(store, 'k')
    expect(JSON.stringify(await late())).toContain('committed')
    expect(await see(store, 'k')).toEqual(before)
  })

  it('does nothing if it comes after its repetition was refused, even if it could be carried out by then', async () => {
    let late!: Send
    const store = storeOn('refused', async (send) => {
      late = send
      await storeOn('refused').commit(commitOf({ puts: [put('k', 'theirs')] }))
      throw cut()
    })
    const state = await store.commit(commitOf({ comparisons: [{ key: 'k', is: 'equal', revision: 0n }], puts: [put('k', 'ours')] }))
    expect(state.status).toBe('conflict')
    await store.commit(commitOf({ deletes: ['k'] }))
    expect(JSON.stringify(await late())).toContain('conflict')
    expect((await see(store, 'k')).value).toBeUndefined()
  })

  it('counts once if its answer is lost, though what it rests on is over by then', async () => {
    const { held, release } = await hold(open(factory(), 'over'))
    const store = storeOn('over', async (send) => {
      await send()
      await release()
      throw cut()
    })
    expect((await store.commit(commitOf({ holds: [held], puts: [put('k', '1')] }))).status).toBe('committed')
    expect((await see(store, 'k')).value).toBe('1')
    expect(await store.commit(commitOf({ holds: [held], puts: [put('k', '2')] }))).toEqual({ status: 'not-held', claim: held.claim })
    expect((await see(store, 'k')).value).toBe('1')
  })

  it('is not carried out any more if it was lost itself, and what it rests on is over by then', async () => {
    const { held, release } = await hold(open(factory(), 'ended'))
    let late!: Send
    const store = storeOn('ended', async (send) => {
      late = send
      await release()
      throw cut()
    })
    const state = await store.commit(commitOf({ holds: [held], puts: [put('k', '1')] }))
    expect(state).toEqual({ status: 'not-held', claim: held.claim })
    expect(JSON.stringify(await late())).toContain('not-held')
    expect((await see(store, 'k')).value).toBeUndefined()
  })

  it('is refused for good, whether what it rests on holds or not', async () => {
    const { held, release } = await hold(open(factory(), 'conflict'))
    let late!: Send
    const store = storeOn('conflict', async (send) => {
      late = send
      await storeOn('conflict').commit(commitOf({ puts: [put('k', 'theirs')] }))
      throw cut()
    })
    const ours = commitOf({ holds: [held], comparisons: [{ key: 'k', is: 'equal', revision: 0n }], puts: [put('k', 'ours')] })
    expect((await store.commit(ours)).status).toBe('conflict')
    await store.commit(commitOf({ deletes: ['k'] }))
    expect(JSON.stringify(await late())).toContain('conflict')
    await release()
    expect(JSON.stringify(await late())).toContain('not-held')
    expect((await see(store, 'k')).value).toBeUndefined()
  })
}
