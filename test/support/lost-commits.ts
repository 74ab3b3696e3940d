/** What becomes of a commit that gets lost, or whose answer does, or that comes late, where a store remembers those that were carried out. */
import { expect, it } from 'vitest'
import type { Commit, VersionedStore } from '../../src/core/backend.js'

/** Carries a request out. */
export type Send = () => Promise<unknown>

export interface FaultyStores {
  /** `first`: what becomes of the first request. */
  readonly storeOn: (prefix: string, first?: (send: Send) => Promise<unknown>) => VersionedStore
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

export function lostCommits({ storeOn, cut }: FaultyStores): void {
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
}
