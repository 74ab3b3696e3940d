/** Claims that nobody wants any more are freed in the background: how often that is tried, and what is remembered of them. */
import { describe, expect, it } from 'vitest'
import type { Backend, ReleaseState } from '../../src/core/backend.js'
import { OwnClaim, type Batcher, type Call } from '../../src/core/batcher.js'
import { Events } from '../../src/core/events.js'
import { Withdrawals } from '../../src/core/withdrawals.js'
import { BackendError, type LockManager } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { ManualClock, settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

/** A world in which `a` has just given up waiting for a key that `b` holds. */
async function givenUp(before: (world: ReturnType<typeof manualWorld>, a: LockManager) => void = () => {}, ttlMs = 1_000) {
  const the = manualWorld()
  const [a, b] = [the.manager(), the.manager()]
  await b.lock('k')
  before(the, a)
  const waiting = watch(a.lock('k', { waitMs: 10, ttlMs }))
  await the.clock.advance(10)
  expect(waiting.state).toBe('rejected')
  return { ...the, a, b, releases: () => the.store.sent('release').filter(({ owner }) => owner === a.owner) }
}

describe('a withdrawal', () => {
  it('that succeeds is sent once, and nothing is said of it', async () => {
    const { releases, clock, named } = await givenUp()
    await clock.advance(60_000)
    expect(releases()).toHaveLength(1)
    expect(named('release-failed')).toEqual([])
  })

  it('that the store could not carry out is told of with the reason, and tried again', async () => {
    const error = outage('LOADING')
    const { releases, clock, named } = await givenUp(({ store }, { owner }) => store.answer('release', [{ status: 'failed', error }], { owner }))
    expect(named('release-failed')).toMatchObject([{ key: 'k', error }])
    await clock.advance(60_000)
    expect(releases()).toHaveLength(2)
    expect(named('release-failed')).toHaveLength(1)
  })

  it('is tried again with pauses that grow, for as long as the claim could be in the way, and no longer', async () => {
    const { releases, clock } = await givenUp(({ store }, { owner }) => store.fail('release', outage(), { times: Infinity, owner }), 5_000)
    const start = releases()[0]!.sentAt
    await clock.advance(60_000)
    expect(releases().map(({ sentAt }) => sentAt - start)).toEqual([0, 50, 150, 350, 750, 1_550, 2_550, 3_550, 4_550, 5_550])
  })

  it('is not tried again if that cannot help', async () => {
    const error = new BackendError('WRONGTYPE', { transient: false })
    const { releases, clock } = await givenUp(({ store }, { owner }) => store.fail('release', error, { times: Infinity, owner }))
    await clock.advance(60_000)
    expect(releases()).toHaveLength(1)
  })

  it('keeps no process alive between its tries', async () => {
    const { releases, clock } = await givenUp(({ store }, { owner }) => store.fail('release', outage(), { times: Infinity, owner }))
    expect(clock.pending()).toBe(clock.pending('background'))
    await clock.advance(60_000)
    expect(releases().length).toBeGreaterThan(1)
  })

  it('is not tried again once the manager closes', async () => {
    const { a, releases, clock } = await givenUp(({ store }, { owner }) => store.fail('release', outage(), { times: Infinity, owner }))
    const closed = watch(a.close())
    await clock.advance(60_000)
    expect(closed.state).toBe('resolved')
    // The first, and the one whose pause had begun.
    expect(releases()).toHaveLength(2)
  })
})

describe('of what was withdrawn', () => {
  const claim = (id: string, ttlMs = 7_000) =>
    new OwnClaim({ id, resource: 'k', take: 1, limit: 1, ttlMs, type: 'job', metadata: '{"m":1}' })

  function world() {
    const clock = new ManualClock()
    const released: OwnClaim[] = []
    const batcher = {
      release: (call: Call<OwnClaim, ReleaseState>) => {
        released.push(call.item)
        call.answered({ status: 'not-held' })
      },
    } as unknown as Batcher
    const events = new Events({ owner: 'me', prefix: 'p', backend: 'fake' })
    return { clock, released, withdrawals: new Withdrawals({ name: 'fake' } as Backend, batcher, clock, events) }
  }

  it('all is remembered that the store knows it by, and it is freed by that when it comes back', async () => {
    const { released, clock, withdrawals } = world()
    withdrawals.start(claim('a'))
    await clock.advance(59_999)
    withdrawals.start(claim('b'))
    withdrawals.cameBack('a', 'k')
    await settle()
    expect(released.map(({ id }) => id)).toEqual(['a', 'b', 'a'])
    expect(released[2]).toMatchObject({ id: 'a', resource: 'k', ttlMs: 7_000, type: 'job', metadata: '{"m":1}' })
  })

  it('nothing is remembered for longer than a minute: then it is freed by its id', async () => {
    const { released, clock, withdrawals } = world()
    withdrawals.start(claim('a'))
    await clock.advance(60_000)
    withdrawals.start(claim('b'))
    withdrawals.cameBack('a', 'k')
    expect(released[2]).toMatchObject({ id: 'a', resource: 'k', take: 1, limit: 1 })
    expect(released[2]!.type).toBeUndefined()
    // The later one is still known.
    withdrawals.cameBack('b', 'k')
    expect(released[3]!.type).toBe('job')
  })

  it('one that comes back is remembered for another minute', async () => {
    const { released, clock, withdrawals } = world()
    withdrawals.start(claim('a'))
    await clock.advance(40_000)
    withdrawals.start(claim('b'))
    withdrawals.cameBack('a', 'k')
    await clock.advance(40_000)
    withdrawals.start(claim('c'))
    withdrawals.cameBack('a', 'k')
    expect(released.at(-1)!.type).toBe('job')
  })

  it('the latest ten thousand are remembered, and no more', async () => {
    const { released, withdrawals } = world()
    for (let i = 0; i <= 10_000; i++) withdrawals.start(claim(`${i}`))
    withdrawals.cameBack('1', 'k')
    expect(released.at(-1)!.type).toBe('job')
    withdrawals.cameBack('0', 'k')
    expect(released.at(-1)!.type).toBeUndefined()
  })
})
