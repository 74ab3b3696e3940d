/** The batcher: which requests travel together, when, and what becomes of those that go wrong. */
import { describe, expect, it } from 'vitest'
import type { Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState } from '../../src/core/backend.js'
import { Batcher, OwnClaim } from '../../src/core/batcher.js'
import { BackendError, ConfigurationError, LockNotHeldError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { ManualClock, settle } from '../support/manual-clock.js'
import { watch } from '../support/manual-world.js'

type Kind = 'queue' | 'leave' | 'release' | 'renew'
type State = ClaimState | ReleaseState | RenewState

const HELD = { status: 'held', epoch: 7n, waiting: 0 } as const
const RELEASED = { status: 'released' } as const

/** A request that has reached the store, whose answer is in the test's hands. */
interface Sent {
  readonly kind: Kind
  readonly ids: readonly string[]
  /** With what is said of single ones, and what is usual of the others. */
  readonly answer: (states?: Record<string, State>) => void
  readonly fail: (error: unknown) => void
  /** Whatever that is. */
  readonly say: (states: any) => void
}

/** `react` may answer, or throw, while the request is being sent. */
function world(react: (request: Sent) => void = () => {}, flights?: 1) {
  const clock = new ManualClock()
  const sent: Sent[] = []
  const receive = (kind: Kind, claims: readonly Claim[]): Promise<any> => {
    const ids = claims.map(({ id }) => id)
    const usual = kind === 'release' ? RELEASED : HELD
    let resolve!: (states: readonly State[]) => void
    let fail!: (error: unknown) => void
    const answer = (states: Record<string, State> = {}) => resolve(ids.map((id) => states[id] ?? usual))
    const reply = new Promise((...both) => ([resolve, fail] = both))
    const request = { kind, ids, answer, fail, say: resolve }
    sent.push(request)
    react(request)
    return reply
  }
  const backend = {
    name: 'fake',
    flights,
    claim: (claims: readonly Claim[], ifBusy: 'queue' | 'leave') => receive(ifBusy, claims),
    release: (claims: readonly Claim[]) => receive('release', claims),
    renew: (renewals: readonly Renewal[]) => receive('renew', renewals.map(({ claim }) => claim)),
  } as unknown as Backend
  const batcher = new Batcher(backend, clock)
  const claims = new Map<string, OwnClaim>()
  /** The same for the same id. */
  const claimOf = (id: string): OwnClaim => {
    const claim = claims.get(id) ?? new OwnClaim({ id, resource: `key of ${id}`, take: 1, limit: 1, ttlMs: 10_000 })
    claims.set(id, claim)
    return claim
  }
  return {
    clock,
    sent,
    /** What was sent so far, in order, as `kind: ids`. */
    log: () => sent.map(({ kind, ids }) => `${kind}: ${ids.join(' ')}`),
    claim: (id: string, ifBusy: 'queue' | 'leave' = 'queue', whenAnswered = () => {}) =>
      watch(
        new Promise<ClaimState>((resolve, reject) => {
          const answered = (state: ClaimState) => (resolve(state), whenAnswered())
          batcher.claim({ item: claimOf(id), answered, failed: reject }, ifBusy)
        }),
      ),
    release: (id: string) => watch(new Promise<ReleaseState>((answered, failed) => batcher.release({ item: claimOf(id), answered, failed }))),
    renew: (id: string) => {
      const item = { claim: claimOf(id), ttlMs: 10_000, exact: false }
      return watch(new Promise<RenewState>((answered, failed) => batcher.renew({ item, answered, failed })))
    },
    claimOf,
    batcher,
  }
}

const forGood = (message = 'WRONGTYPE') => new BackendError(message, { transient: false })

describe('with nothing on its way, what is asked', () => {
  it('is sent at the end of this turn of the event loop', async () => {
    const { claim, log } = world()
    claim('a')
    await Promise.resolve()
    expect(log()).toEqual([])
    await settle()
    expect(log()).toEqual(['queue: a'])
  })

  it('travels together with all that is asked in the same turn, also by those who were just answered', async () => {
    const { claim, log } = world()
    claim('a')
    claim('b')
    void Promise.resolve().then(() => claim('c'))
    await settle()
    expect(log()).toEqual(['queue: a b c'])
  })

  it('waits for no clock', async () => {
    const { claim, release, renew, clock, sent } = world()
    claim('a')
    release('b')
    renew('c')
    await settle()
    expect(sent).toHaveLength(3)
    expect(clock.pending()).toBe(0)
  })

  it('is answered to each who asked', async () => {
    const { claim, sent } = world()
    const [a, b] = [claim('a'), claim('b')]
    await settle()
    sent[0]!.answer({ b: { status: 'held', epoch: 8n, waiting: 3 } })
    await settle()
    expect(a.value).toEqual(HELD)
    expect(b.value).toEqual({ status: 'held', epoch: 8n, waiting: 3 })
  })

  it('is sent, however often that has happened before', async () => {
    const { claim, log } = world(({ answer }) => answer())
    for (const id of ['a', 'b', 'c']) {
      claim(id)
      await settle()
    }
    expect(log()).toEqual(['queue: a', 'queue: b', 'queue: c'])
  })
})

describe('while a request is on its way, what is asked', () => {
  it('is gathered, and sent when the answer is there', async () => {
    const { claim, sent, log } = world()
    claim('a')
    await settle()
    claim('b')
    await settle()
    claim('c')
    await settle()
    expect(log()).toEqual(['queue: a'])
    sent[0]!.answer()
    await settle()
    expect(log()).toEqual(['queue: a', 'queue: b c'])
  })

  it('travels together with what the answer sets going', async () => {
    const { claim, sent, log } = world()
    claim('a', 'queue', () => claim('after a'))
    await settle()
    claim('b')
    sent[0]!.answer()
    await settle()
    expect(log()).toEqual(['queue: a', 'queue: b after a'])
  })

  it('is sent when the request has failed, too', async () => {
    const { claim, sent, log } = world()
    claim('a')
    await settle()
    claim('b')
    sent[0]!.fail(outage())
    await settle()
    expect(log()).toEqual(['queue: a', 'queue: b'])
  })

  it('waits for every request of those that were sent together', async () => {
    const { claim, release, sent, log } = world()
    release('a')
    claim('b')
    await settle()
    claim('c')
    sent[0]!.answer()
    await settle()
    expect(log()).toEqual(['release: a', 'queue: b'])
    sent[1]!.answer()
    await settle()
    expect(log()).toEqual(['release: a', 'queue: b', 'queue: c'])
  })
})

const ids = (count: number, name = 'c') => Array.from({ length: count }, (_, i) => `${name}${i}`)

it('however much is gathered, one timer looks whether the lane hangs', async () => {
  const { claim, clock } = world()
  for (const id of ids(5)) {
    claim(id)
    await settle()
  }
  expect(clock.pending()).toBe(1)
})

describe('one request', () => {
  it('has at most 128 claims; more are several', async () => {
    const { claim, sent } = world()
    const asked = ids(600).map((id) => claim(id))
    await settle()
    for (const request of sent) expect(request.ids.length).toBeLessThanOrEqual(128)
    expect(sent.flatMap((request) => request.ids)).toEqual(ids(600))
    for (const { answer } of sent) answer()
    await settle()
    for (const { state } of asked) expect(state).toBe('resolved')
  })

  it('of just as many is sent once', async () => {
    const { claim, sent } = world()
    for (let i = 0; i < 256; i++) claim(`c${i}`)
    await settle()
    expect(sent.map(({ kind, ids }) => [kind, ids.length])).toEqual([['queue', 128], ['queue', 128]])
  })

  it('has at most 128 releases, too, and those do not count as claims', async () => {
    const { claim, release, sent } = world()
    claim('on its way')
    await settle()
    for (const id of ids(130, 'r')) release(id)
    for (const id of ids(127)) claim(id)
    await settle()
    const sizes = sent.slice(1).map((request) => [request.kind, request.ids.length])
    expect(sizes).toEqual([['release', 128], ['release', 2], ['queue', 127]])
  })

  it('has up to 1,000 renewals', async () => {
    const { renew, sent } = world()
    renew('on its way')
    await settle()
    for (const id of ids(2_300)) renew(id)
    await settle()
    expect(sent.slice(1).map((request) => request.ids.length)).toEqual([1_000, 1_000, 300])
  })

  it('has releases, claims that queue or claims that leave, and releases go first: they may free what is asked for', async () => {
    const { claim, release, sent, log } = world()
    const left = claim('leaves', 'leave')
    const queued = claim('queues')
    const released = release('goes')
    claim('queues too')
    release('goes too')
    await settle()
    expect(log()).toEqual(['release: goes goes too', 'queue: queues queues too', 'leave: leaves'])
    for (const { answer } of sent) answer()
    await settle()
    expect([left.value, queued.value, released.value]).toEqual([HELD, HELD, RELEASED])
  })
})

describe('when much has come together', () => {
  const sizes = ({ sent }: { sent: Sent[] }) => sent.map((request) => request.ids.length)

  it('it is sent in two flights: from 16 on', async () => {
    const [some, many] = [world(), world()]
    for (const id of ids(15)) some.claim(id)
    for (const id of ids(16)) many.claim(id)
    await settle()
    expect(sizes(some)).toEqual([15])
    expect(sizes(many)).toEqual([8, 8])
    expect(many.sent.flatMap((request) => request.ids)).toEqual(ids(16))
  })

  it('while one flight is on its way, a second is sent, and no third', async () => {
    const the = world()
    the.claim('first')
    await settle()
    for (const id of ids(15)) the.claim(id)
    await settle()
    expect(sizes(the)).toEqual([1])
    the.claim('one more')
    await settle()
    expect(sizes(the)).toEqual([1, 16])
    for (const id of ids(100)) the.claim(id)
    await settle()
    expect(sizes(the)).toEqual([1, 16])
  })

  it('the next is sent as soon as one of two flights has landed, whichever that is', async () => {
    for (const lands of [0, 1]) {
      const the = world()
      for (const id of ids(16)) the.claim(id)
      await settle()
      the.claim('next')
      await settle()
      expect(sizes(the)).toEqual([8, 8])
      the.sent[lands]!.answer()
      await settle()
      expect(sizes(the)).toEqual([8, 8, 1])
    }
  })

  it('two flights that hang keep others waiting for 20 ms, and no longer', async () => {
    const the = world()
    for (const id of ids(16)) the.claim(id)
    await the.clock.advance(5)
    the.claim('next')
    await the.clock.advance(14)
    expect(sizes(the)).toEqual([8, 8])
    await the.clock.advance(1)
    expect(sizes(the)).toEqual([8, 8, 1])
  })

  it('it waits for the one flight of a store that wants no more, and is one flight then', async () => {
    const the = world(() => {}, 1)
    for (const id of ids(40)) the.claim(id)
    await settle()
    expect(sizes(the)).toEqual([40])
    for (const id of ids(60, 'next ')) the.claim(id)
    await settle()
    expect(sizes(the)).toEqual([40])
    the.sent[0]!.answer()
    await settle()
    expect(sizes(the)).toEqual([40, 60])
  })

  it('releases go first in each flight', async () => {
    const { claim, release, log } = world()
    claim('on its way')
    await settle()
    for (const id of ids(10)) claim(id)
    for (const id of ids(6, 'r')) release(id)
    await settle()
    expect(log().slice(1)).toEqual([`release: ${ids(6, 'r').join(' ')}`, `queue: ${ids(10).join(' ')}`])
  })
})

describe('renewals', () => {
  it('wait for no claim and no release', async () => {
    const { claim, release, renew, log } = world()
    claim('hangs')
    release('hangs too')
    await settle()
    renew('a')
    await settle()
    expect(log().slice(2)).toEqual(['renew: a'])
  })

  it('keep no claim and no release waiting', async () => {
    const { claim, release, renew, log } = world()
    renew('hangs')
    await settle()
    claim('a')
    release('b')
    await settle()
    expect(log()).toEqual(['renew: hangs', 'release: b', 'queue: a'])
  })

  it('are joined among themselves', async () => {
    const { renew, sent, log } = world()
    renew('a')
    await settle()
    const [b, c] = [renew('b'), renew('c')]
    await settle()
    expect(log()).toEqual(['renew: a'])
    sent[0]!.answer()
    await settle()
    sent[1]!.answer({ c: { status: 'lost' } })
    await settle()
    expect(log()).toEqual(['renew: a', 'renew: b c'])
    expect(b.value).toEqual(HELD)
    expect(c.value).toEqual({ status: 'lost' })
  })

  it('that are gathered already wait for nothing', async () => {
    const { renew, batcher, claimOf, log } = world()
    renew('hangs')
    await settle()
    void batcher.renewAll(['a', 'b'].map((id) => ({ claim: claimOf(id), ttlMs: 10_000, exact: false })))
    expect(log()).toEqual(['renew: hangs', 'renew: a b'])
  })
})

describe('a request that hangs', () => {
  it('keeps those behind it waiting for 20 ms from when it was sent, and no longer', async () => {
    const { claim, clock, log } = world()
    claim('hangs')
    await settle()
    await clock.advance(5)
    claim('b')
    await clock.advance(14)
    expect(log()).toEqual(['queue: hangs'])
    await clock.advance(1)
    expect(log()).toEqual(['queue: hangs', 'queue: b'])
  })

  it('keeps those who come later than that not at all', async () => {
    const { claim, clock, log } = world()
    claim('hangs')
    await clock.advance(20)
    claim('b')
    claim('c')
    await settle()
    expect(log()).toEqual(['queue: hangs', 'queue: b c'])
    expect(clock.pending()).toBe(0)
  })

  it('is one of many: each keeps others waiting for 20 ms', async () => {
    const { claim, clock, log } = world()
    for (const id of ['a', 'b', 'c', 'd']) {
      claim(id)
      await clock.advance(10)
    }
    expect(log()).toEqual(['queue: a', 'queue: b', 'queue: c d'])
  })

  it('reaches its callers all the same when it is answered late', async () => {
    const { claim, sent, clock } = world()
    const late = claim('late')
    await clock.advance(60_000)
    expect(late.state).toBe('pending')
    sent[0]!.answer()
    await settle()
    expect(late.value).toEqual(HELD)
  })

  it('reaches its callers also if it fails late', async () => {
    const { claim, sent, clock } = world()
    const late = claim('late')
    await clock.advance(20)
    claim('b')
    await settle()
    sent[0]!.fail(outage())
    await settle()
    expect(late.error).toEqual(outage())
  })

  it('does not let go what waits for a later request, when it is answered at last', async () => {
    const { claim, sent, clock, log } = world()
    claim('late')
    await clock.advance(20)
    claim('b')
    await settle()
    claim('c')
    sent[0]!.answer()
    await clock.advance(19)
    expect(log()).toEqual(['queue: late', 'queue: b'])
    sent[1]!.answer()
    await settle()
    expect(log()).toEqual(['queue: late', 'queue: b', 'queue: c'])
  })

  it('does not make the lane believe that something is on its way, when it is answered after all the others', async () => {
    const { claim, sent, clock, log } = world()
    claim('late')
    await clock.advance(20)
    claim('b')
    await settle()
    sent[1]!.answer()
    await settle()
    sent[0]!.answer()
    await settle()
    claim('c')
    await settle()
    expect(log()).toEqual(['queue: late', 'queue: b', 'queue: c'])
    expect(clock.pending()).toBe(0)
  })

  it('leaves no timer behind when it is answered in time', async () => {
    const { claim, sent, clock } = world()
    claim('a')
    await settle()
    claim('b')
    expect(clock.pending('background')).toBe(1)
    sent[0]!.answer()
    await settle()
    expect(clock.pending()).toBe(0)
  })

  it('does not cut the time short that the next one has', async () => {
    const { claim, sent, clock, log } = world()
    claim('a')
    await settle()
    claim('b')
    await clock.advance(15)
    sent[0]!.answer()
    await settle()
    claim('c')
    await clock.advance(19)
    expect(log()).toEqual(['queue: a', 'queue: b'])
    await clock.advance(1)
    expect(log()).toEqual(['queue: a', 'queue: b', 'queue: c'])
  })
})

describe('what goes wrong', () => {
  it('with one claim is that one’s alone', async () => {
    const { claim, sent } = world()
    const [a, bad, c] = [claim('a'), claim('bad'), claim('c')]
    await settle()
    const failed = { status: 'failed', error: new ConfigurationError('Another limit.') } as const
    sent[0]!.answer({ bad: failed })
    await settle()
    expect(bad.value).toEqual(failed)
    expect([a.value, c.value]).toEqual([HELD, HELD])
    expect(sent).toHaveLength(1)
  })

  it.each(['claim', 'release', 'renew'] as const)('with a whole request for good is asked of each %s alone', async (method) => {
    const { sent, log, ...the } = world()
    const [a, bad, c] = [the[method]('a'), the[method]('bad'), the[method]('c')]
    await settle()
    sent[0]!.fail(forGood())
    await settle()
    const kind = method === 'claim' ? 'queue' : method
    expect(log()).toEqual([`${kind}: a bad c`, `${kind}: a`, `${kind}: bad`, `${kind}: c`])
    sent[1]!.answer()
    sent[2]!.fail(forGood())
    sent[3]!.answer()
    await settle()
    expect([a.state, c.state]).toEqual(['resolved', 'resolved'])
    expect(bad.error).toEqual(forGood())
    expect(sent).toHaveLength(4)
  })

  it('with an unknown error counts as for good', async () => {
    const { claim, sent, log } = world()
    const [a, b] = [claim('a'), claim('b')]
    await settle()
    sent[0]!.fail(new TypeError('a bug'))
    await settle()
    expect(log()).toEqual(['queue: a b', 'queue: a', 'queue: b'])
    sent[1]!.fail(new TypeError('a bug'))
    sent[2]!.answer()
    await settle()
    expect(a.error).toEqual(new TypeError('a bug'))
    expect(b.value).toEqual(HELD)
  })

  it('with a request of one is not asked again', async () => {
    const { claim, sent } = world()
    const a = claim('a')
    await settle()
    sent[0]!.fail(forGood())
    await settle()
    expect(a.error).toEqual(forGood())
    expect(sent).toHaveLength(1)
  })

  it.each(['claim', 'release', 'renew'] as const)('with an answer that leaves some out is told to all of a request, and asked again by nobody: %s', async (method) => {
    const { sent, ...the } = world()
    for (const states of [[HELD], [], undefined]) {
      const asked = [the[method]('a'), the[method]('b')]
      await settle()
      sent.at(-1)!.say(states)
      await settle()
      for (const { error } of asked) expect(error).toMatchObject({ transient: true, message: expect.stringMatching(/answered with (.*for 2 items|no states)/) })
    }
    expect(sent).toHaveLength(3)
    const next = the[method]('c')
    await settle()
    sent[3]!.answer()
    await settle()
    expect(next.state).toBe('resolved')
  })

  it('for a while only is told to all of a request, and left to them', async () => {
    const { claim, sent } = world()
    const asked = [claim('a'), claim('b'), claim('c')]
    await settle()
    sent[0]!.fail(outage())
    await settle()
    for (const { error } of asked) expect(error).toEqual(outage())
    expect(sent).toHaveLength(1)
  })

  it('with one request leaves those alone that were sent beside it', async () => {
    const { claim, release, sent } = world()
    const [released, claimed] = [release('a'), claim('b')]
    await settle()
    sent[1]!.fail(outage())
    sent[0]!.answer()
    await settle()
    expect(released.value).toEqual(RELEASED)
    expect(claimed.state).toBe('rejected')
  })

  it('keeps others waiting until each has been asked for alone', async () => {
    const { claim, sent, log } = world()
    claim('a')
    claim('b')
    await settle()
    claim('next')
    sent[0]!.fail(forGood())
    await settle()
    sent[1]!.answer()
    await settle()
    expect(log()).toEqual(['queue: a b', 'queue: a', 'queue: b'])
    sent[2]!.answer()
    await settle()
    expect(log().slice(3)).toEqual(['queue: next'])
  })

  it('while sending, in a backend that throws, is told to whom it concerns', async () => {
    const { claim, release, log } = world(({ ids, answer }) => {
      if (ids.includes('bad')) throw new TypeError('a bug')
      answer()
    })
    const [a, bad, gone] = [claim('a'), claim('bad'), release('gone')]
    await settle()
    expect(log()).toEqual(['release: gone', 'queue: a bad', 'queue: a', 'queue: bad'])
    expect([gone.value, a.value]).toEqual([RELEASED, HELD])
    expect(bad.error).toEqual(new BackendError('Unexpected error in the fake backend.', { transient: false }))
    expect(bad.error.cause).toEqual(new TypeError('a bug'))
    const next = claim('next')
    await settle()
    expect(next.value).toEqual(HELD)
  })
})

describe('a release', () => {
  it('takes the claim back that is not sent yet, and is sent all the same', async () => {
    const { claim, release, sent, log } = world()
    const claimed = claim('a')
    const released = release('a')
    await settle()
    expect(log()).toEqual(['release: a'])
    const error = new LockNotHeldError('key of a', '"key of a" was released meanwhile.')
    expect(claimed.value).toEqual({ status: 'failed', error })
    sent[0]!.answer()
    await settle()
    expect(released.value).toEqual(RELEASED)
  })

  it('takes the renewal back that is not sent yet', async () => {
    const { renew, release, log } = world()
    const renewed = renew('a')
    release('a')
    await settle()
    expect(log()).toEqual(['release: a'])
    expect(renewed.value).toMatchObject({ status: 'failed', error: expect.any(LockNotHeldError) })
  })

  it('takes back what is gathered behind a request on its way', async () => {
    const { claim, renew, release, sent, log } = world()
    claim('first')
    renew('first')
    await settle()
    claim('a')
    renew('a')
    release('a')
    for (const { answer } of [...sent]) answer()
    await settle()
    expect(log()).toEqual(['queue: first', 'renew: first', 'release: a'])
  })

  it('takes back nothing of others', async () => {
    const { claim, renew, release, log } = world()
    claim('b')
    renew('b')
    claim('c', 'leave')
    release('b too')
    release('a')
    await settle()
    expect(log().sort()).toEqual(['leave: c', 'queue: b', 'release: b too a', 'renew: b'])
  })

  it('takes back no other release of its claim', async () => {
    const { release, sent } = world()
    const twice = [release('a'), release('a')]
    await settle()
    for (const { answer } of sent) answer()
    await settle()
    for (const { value } of twice) expect(value).toEqual(RELEASED)
  })

  it('waits for its claim’s request that is on its way, and is sent then', async () => {
    const { claim, release, sent, clock, log } = world()
    claim('a')
    await settle()
    const released = release('a')
    await clock.advance(4_999)
    expect(log()).toEqual(['queue: a'])
    sent[0]!.answer()
    await settle()
    expect(log()).toEqual(['queue: a', 'release: a'])
    sent[1]!.answer()
    await settle()
    expect(released.value).toEqual(RELEASED)
    expect(clock.pending()).toBe(0)
  })

  it('waits for it also if it fails', async () => {
    const { claim, release, sent, log } = world()
    claim('a')
    await settle()
    release('a')
    await settle()
    sent[0]!.fail(outage())
    await settle()
    expect(log()).toEqual(['queue: a', 'release: a'])
  })

  it('waits for it also while it is asked for alone', async () => {
    const { claim, release, sent, clock, log } = world()
    claim('a')
    claim('b')
    await settle()
    release('a')
    sent[0]!.fail(forGood())
    await clock.advance(100)
    expect(log().slice(1)).toEqual(['queue: a', 'queue: b'])
    sent[1]!.answer()
    await clock.advance(20)
    expect(log().slice(3)).toEqual(['release: a'])
  })

  it('waits for it no longer than 5 s', async () => {
    const { claim, release, clock, log } = world()
    claim('a')
    await settle()
    release('a')
    await clock.advance(4_999)
    expect(log()).toEqual(['queue: a'])
    await clock.advance(1)
    expect(log()).toEqual(['queue: a', 'release: a'])
  })

  it.each(['is answered', 'hangs'])('waits beside another of the same claim, and both are sent when that %s', async (how) => {
    const { claim, release, sent, clock, log } = world()
    claim('a')
    await settle()
    const twice = [release('a')]
    await clock.advance(1_000)
    twice.push(release('a'))
    if (how === 'is answered') sent[0]!.answer()
    await clock.advance(4_000)
    expect(log()).toEqual(['queue: a', 'release: a a'])
    sent[1]!.answer()
    await settle()
    for (const { value } of twice) expect(value).toEqual(RELEASED)
  })

  it('keeps no other waiting meanwhile', async () => {
    const { claim, release, sent, log } = world()
    claim('a')
    claim('b', 'leave')
    await settle()
    sent[1]!.answer()
    await settle()
    release('a')
    const other = release('b')
    sent[0]!.answer()
    await settle()
    expect(log().slice(2)).toEqual(['release: b a'])
    sent[2]!.answer()
    await settle()
    expect(other.value).toEqual(RELEASED)
  })

  it('does not wait for the claim of another, nor for a renewal', async () => {
    const { claim, renew, release, clock, log } = world()
    claim('b')
    renew('a')
    await clock.advance(20)
    release('a')
    await settle()
    expect(log()).toEqual(['queue: b', 'renew: a', 'release: a'])
  })

  it('waits for the later of two requests of its claim', async () => {
    const { claim, release, sent, clock, log } = world()
    claim('a')
    await clock.advance(20)
    claim('a')
    await settle()
    sent[0]!.answer()
    await settle()
    release('a')
    await clock.advance(1_000)
    expect(log()).toEqual(['queue: a', 'queue: a'])
    sent[1]!.answer()
    await settle()
    expect(log()).toEqual(['queue: a', 'queue: a', 'release: a'])
  })

  it('goes before a claim of the same id that is made after it', async () => {
    const { claim, release, log } = world()
    release('a')
    claim('a')
    await settle()
    expect(log()).toEqual(['release: a', 'queue: a'])
  })

  it.each<[string, (the: ReturnType<typeof world>) => unknown]>([
    ['answered', ({ sent }) => sent[0]!.answer()],
    ['refused for a while', ({ sent }) => sent[0]!.fail(outage())],
    ['refused for good', ({ sent }) => sent[0]!.fail(forGood())],
    ['answered with a failure', ({ sent }) => sent[0]!.answer({ a: { status: 'failed', error: forGood() } })],
  ])('has nothing to wait for when its claim was %s', async (_, happens) => {
    const the = world()
    the.claim('a')
    await settle()
    happens(the)
    await settle()
    the.release('a')
    // It would set a timer to wait for at most 5 s.
    expect(the.clock.pending()).toBe(0)
    await settle()
    expect(the.log()).toEqual(['queue: a', 'release: a'])
  })

  it('has nothing to wait for when its claim was taken back by another release', async () => {
    const { claim, release, clock, log } = world()
    claim('a')
    release('a')
    release('a')
    expect(clock.pending()).toBe(0)
    await settle()
    expect(log()).toEqual(['release: a a'])
  })

  it('of ten thousand claims in a row finds nothing left of them', async () => {
    const { claim, release, clock } = world(({ answer }) => answer())
    for (let i = 0; i < 100; i++) {
      for (let j = 0; j < 100; j++) claim(`${i} ${j}`)
      await settle()
    }
    for (let i = 0; i < 10_000; i++) release(`${Math.floor(i / 100)} ${i % 100}`)
    expect(clock.pending()).toBe(0)
  })

  it('takes as short a time for each of forty thousand that were not sent yet', { timeout: 10_000 }, async () => {
    const { claim, renew, release, log } = world()
    for (let i = 0; i < 20_000; i++) claim(`c${i}`)
    for (let i = 0; i < 20_000; i++) renew(`r${i}`)
    for (let i = 0; i < 20_000; i++) release(`c${i}`)
    for (let i = 0; i < 20_000; i++) release(`r${i}`)
    await settle()
    expect(log().every((request) => request.startsWith('release: '))).toBe(true)
  })

  it('that took back what was gathered leaves the rest to be sent, and no more than was there is worth two flights', async () => {
    const { claim, release, sent, log } = world()
    claim('first')
    await settle()
    for (let i = 0; i < 10; i++) claim(`a${i}`)
    for (let i = 0; i < 10; i++) release(`a${i}`)
    claim('b')
    await settle()
    expect(log()).toEqual(['queue: first'])
    sent[0]!.answer()
    await settle()
    expect(log()).toEqual(['queue: first', 'release: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9', 'queue: b'])
  })
})
