/** What database servers have in common, with a database that the test speaks for. */
import { describe, expect, it } from 'vitest'
import type { WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
import { BackendError, ConfigurationError } from '../../src/core/errors.js'
import { postgresFailure } from '../../src/backends/sql/postgres/errors.js'
import { SqlServerBackend } from '../../src/backends/sql/server/backend.js'
import type { Database, Failure, StepName } from '../../src/backends/sql/server/database.js'
import { readNews } from '../../src/backends/sql/server/news.js'
import { ManualClock, settle } from '../support/manual-clock.js'

const ID = 'a'.repeat(12) + 'b'.repeat(20)
const claim = { id: ID, resource: 'k', take: 1, limit: 1, ttlMs: 10_000 }

type Answer = (values: readonly string[]) => unknown

/** Answers what it is told to, and nothing where it is not told. */
class FakeDatabase implements Database {
  readonly name = 'fake'
  readonly hasShortSteps = false
  readonly showsEarly = false
  readonly calls: [StepName, readonly string[]][] = []
  readonly answers: Partial<Record<StepName, Answer>> = { tidy: () => false, leave: () => null, readNews: () => [] }
  tell: ((news: string) => void) | undefined
  end: (() => void) | undefined

  readonly listen: Database['listen'] = async (_, { onNews, onEnd }) => {
    this.tell = onNews
    this.end = onEnd
    return { close: async () => {} }
  }

  async migrate(): Promise<void> {}

  async call(step: StepName, values: readonly string[]): Promise<string> {
    this.calls.push([step, values])
    const answer = this.answers[step]?.(values)
    if (answer instanceof Error) throw answer
    return JSON.stringify([Date.now(), answer])
  }

  failureOf(error: unknown): Failure {
    const { message } = error as Error
    return { kind: message as Failure['kind'], message, cause: error as Error }
  }

  async close(): Promise<void> {}

  times(step: StepName): number {
    return this.calls.filter(([name]) => name === step).length
  }
}

function open() {
  const database = new FakeDatabase()
  const wakeUps: WakeUp[] = []
  const scope = { prefix: 'p', owner: 'me', clock: systemClock(), retryMs: 50, wake: (wakeUp: WakeUp) => wakeUps.push(wakeUp), warn: () => {} }
  return { database, wakeUps, backend: new SqlServerBackend(database, scope) }
}

/** One after another; the last for good. */
function inTurn(...answers: unknown[]): Answer {
  return () => (answers.length > 1 ? answers.shift() : answers[0])
}

describe('what fails', () => {
  it('for a moment is tried again', async () => {
    const { database, backend } = open()
    database.answers.claim = inTurn(new Error('undone'), new Error('unknown'), [['held', '7', 0, false]])
    expect(await backend.claim([claim], 'leave')).toEqual([{ status: 'held', epoch: 7n, waiting: 0 }])
    expect(database.times('claim')).toBe(3)
  })

  it('for good is told at once, with its cause', async () => {
    const { database, backend } = open()
    const cause = new Error('final')
    database.answers.claim = () => cause
    const error = await backend.claim([claim], 'leave').catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(BackendError)
    expect(error).toMatchObject({ transient: false, cause, message: 'fake failed: final' })
    expect(database.times('claim')).toBe(1)
  })

  it('for long is told after two seconds, as something that may pass', async () => {
    const { database, backend } = open()
    database.answers.claim = () => new Error('undone')
    const startedAt = performance.now()
    await expect(backend.claim([claim], 'leave')).rejects.toMatchObject({ transient: true })
    expect(performance.now() - startedAt).toBeLessThan(3_000)
    expect(database.times('claim')).toBeGreaterThan(5)
    expect(backend.trouble?.message).toBe('undone')
  })

  it('in our own words is passed on as it is', async () => {
    const { database, backend } = open()
    database.answers.claim = () => new ConfigurationError('Use another name.')
    await expect(backend.claim([claim], 'leave')).rejects.toThrow(ConfigurationError)
    expect(database.times('claim')).toBe(1)
  })
})

describe('a release that finds nothing', () => {
  it('says so', async () => {
    const { database, backend } = open()
    database.answers.release = inTurn(new Error('undone'), ['not-held'])
    expect(await backend.release([claim])).toEqual([{ status: 'not-held' }])
  })

  it('does not know, if an earlier try may have done it', async () => {
    const { database, backend } = open()
    database.answers.release = inTurn(new Error('unknown'), new Error('undone'), ['not-held'])
    expect(await backend.release([claim])).toEqual([{ status: 'unknown' }])
  })
})

describe('a list', () => {
  it('is sorted by the bytes of its keys, and answered in the order of the caller', async () => {
    const { database, backend } = open()
    const keys = ['é', 'b', 'a', 'Z', 'a']
    database.answers.claim = ([, , list]) =>
      (JSON.parse(list!) as { key: string }[]).map(({ key }, i) => ['held', String(Number.parseInt(key, 16) * 10 + i), 0, false])
    const states = await backend.claim(keys.map((resource, i) => ({ ...claim, id: `${i}`.repeat(32), resource })), 'leave')
    const asked = (JSON.parse(database.calls.at(-1)![1][2]!) as { key: string }[]).map(({ key }) => Buffer.from(key, 'hex').toString())
    expect(asked).toEqual(['Z', 'a', 'a', 'b', 'é'])
    expect(states.map((state) => 'epoch' in state && state.epoch)).toEqual([0xc3a9n * 10n + 4n, 0x62n * 10n + 3n, 0x61n * 10n + 1n, 0x5an * 10n, 0x61n * 10n + 2n])
  })

  it('with one that can never hold asks for the others only', async () => {
    const { database, backend } = open()
    database.answers.claim = () => [['held', '1', 0, false]]
    const states = await backend.claim([{ ...claim, take: 3, limit: 2 }, claim, { ...claim, take: 1, limit: 2 ** 31 }], 'leave')
    expect(states.map(({ status }) => status)).toEqual(['failed', 'held', 'failed'])
  })
})

describe('news', () => {
  async function waiting() {
    const world = open()
    world.database.answers.claim = () => [['queued', '5', 0, 0, null, false]]
    await world.backend.claim([claim], 'queue')
    await settle()
    world.wakeUps.length = 0
    const tell = (...news: unknown[]) => world.database.tell!(JSON.stringify(news))
    return { ...world, tell }
  }

  it('of a grant tell since when, and for how long if that is not the whole TTL', async () => {
    const { tell, wakeUps } = await waiting()
    tell('granted', ID.slice(0, 12), '9', Date.now(), 1_900, 2)
    tell('granted', ID.slice(0, 12), '9', Date.now(), 9_999.99, 2)
    tell('granted', ID.slice(0, 12), '9', Date.now(), 300, 2)
    expect(wakeUps).toMatchObject([
      { kind: 'granted', resource: 'k', claimId: ID, epoch: 9n, since: expect.any(Number) as number, forMs: 1_900, waiting: 2 },
      { kind: 'granted', since: expect.any(Number) as number },
      // Too short to rely on.
      { kind: 'granted', since: undefined },
    ])
    expect(wakeUps[1]).not.toHaveProperty('forMs')
  })

  it('of a claim that is not ours, or that are none, are nothing to us', async () => {
    const { tell, database, wakeUps } = await waiting()
    tell('granted', 'c'.repeat(12), '9', Date.now(), 1_900, 2)
    tell('granted', ID.slice(0, 12), 9, Date.now(), 1_900, 2)
    tell('granted', ID.slice(0, 12), '9')
    tell('something', ID.slice(0, 12))
    database.tell!('{')
    database.tell!('null')
    expect(wakeUps).toEqual([])
    expect(readNews('["revoked","x"]')).toEqual({ kind: 'revoked', name: 'x' })
  })

  it('that may have been missed while nobody listened make all look again', async () => {
    const { database, wakeUps } = await waiting()
    database.end!()
    await expect.poll(() => wakeUps).toContainEqual({ kind: 'look' })
  })

  it('would be left for one that has come to listen while it asked: it asks again, and says so', async () => {
    const { database, backend, wakeUps } = await waiting()
    database.end!()
    let answer: (what: unknown) => void = () => {}
    database.call = (step, values) => {
      database.calls.push([step, values])
      return new Promise((resolve) => (answer = (what) => resolve(JSON.stringify([Date.now(), what]))))
    }
    const asked = backend.claim([{ ...claim, id: 'd'.repeat(32), resource: 'other' }], 'queue')
    const [, , , , saidSo] = database.calls.at(-1)![1]
    expect(saidSo).toBe('false')
    const answerClaim = answer
    // It listens again by then.
    await expect.poll(() => wakeUps).toContainEqual({ kind: 'look' })
    answerClaim([['queued', '6', 0, 0, null, false]])
    await asked
    await settle()
    expect(wakeUps).toContainEqual({ kind: 'look', resource: 'other' })
  })

  it('are read while it cannot listen', async () => {
    const database = new FakeDatabase()
    Object.assign(database, { listen: undefined })
    const wakeUps: WakeUp[] = []
    const scope = { prefix: 'p', owner: 'me', clock: systemClock(), retryMs: 20, wake: (wakeUp: WakeUp) => wakeUps.push(wakeUp), warn: () => {} }
    const backend = new SqlServerBackend(database, scope)
    database.answers.claim = ([, , , , hears]) => [['queued', '5', 0, 0, null, hears === 'true']]
    database.answers.readNews = inTurn([], [JSON.stringify(['granted', ID.slice(0, 12), '9', Date.now(), 1_900, 0])], [])
    await backend.claim([claim], 'queue')
    await expect.poll(() => wakeUps).toMatchObject([{ kind: 'granted', claimId: ID }])
    await backend.close()
    expect(database.times('leave')).toBe(1)
  })
})

describe('where nothing can be heard, news are looked for', () => {
  const RETRY_MS = 50
  const waiters = (count: number, from = 0) => Array.from({ length: count }, (_, i) => ({ ...claim, id: `${from + i}`.padStart(32, '0'), resource: `k${from + i}` }))

  async function deaf() {
    const clock = new ManualClock()
    const database = new FakeDatabase()
    Object.assign(database, { listen: undefined })
    const line = { ahead: 9 }
    database.answers.claim = ([, , list]) => (JSON.parse(list!) as unknown[]).map(() => ['queued', '5', line.ahead, 0, null, false])
    /** When it looked. */
    const looks: number[] = []
    const left: string[] = []
    database.answers.readNews = () => {
      looks.push(clock.now())
      return left.splice(0)
    }
    const wakeUps: WakeUp[] = []
    const backend = new SqlServerBackend(database, { prefix: 'p', owner: 'me', clock, retryMs: RETRY_MS, wake: (wakeUp) => wakeUps.push(wakeUp), warn: () => {} })
    return { clock, backend, line, looks, left, wakeUps }
  }

  const gapsOf = (times: readonly number[]) => times.slice(1).map((at, i) => at - times[i]!)

  it('once for all that wait, less often the longer none come, and never sooner than retryMs', async () => {
    const { clock, backend, looks, wakeUps } = await deaf()
    const all = waiters(10)
    const startedAt = clock.now()
    await backend.claim(all, 'queue')
    // Each asks again at its heartbeat, at a moment of its own.
    for (let i = 0; i < 100; i++) {
      await clock.advance(50)
      await backend.claim([all[i % 10]!], 'queue')
    }
    await backend.close()
    const gaps = gapsOf([startedAt, ...looks])
    for (const [i, gap] of gaps.entries()) {
      const leastMs = Math.min(500, RETRY_MS * 1.5 ** i)
      expect(gap).toBeGreaterThanOrEqual(leastMs - 1e-6)
      expect(gap).toBeLessThanOrEqual(leastMs * 1.25 + 1e-6)
    }
    expect(gaps.length).toBeGreaterThan(10)
    // Several processes that began together do not go on so.
    expect(new Set(gaps.slice(-5)).size).toBe(5)
    expect(wakeUps).toEqual([])
  })

  it('as often as at first after some have come, and when somebody comes to wait, or nearer', async () => {
    const { clock, backend, line, looks, left } = await deaf()
    const expectSoon = (gap: number | undefined) => {
      expect(gap).toBeGreaterThanOrEqual(RETRY_MS)
      expect(gap).toBeLessThanOrEqual(RETRY_MS * 1.25)
    }
    await backend.claim(waiters(1), 'queue')
    await clock.advance(5_000)
    left.push(JSON.stringify(['contended', 'x']))
    const before = looks.length
    await clock.advance(5_000)
    expectSoon(gapsOf(looks)[before])
    for (const [which, ahead] of [[1, 9], [0, 8]] as const) {
      const askedAt = clock.now()
      line.ahead = ahead
      await backend.claim(waiters(1, which), 'queue')
      await clock.advance(5_000)
      expectSoon(looks.find((at) => at > askedAt)! - askedAt)
    }
    await backend.close()
  })

  it('not at all when nothing waits any more', async () => {
    const { clock, backend, looks } = await deaf()
    const [one] = waiters(1)
    await backend.claim([one!], 'queue')
    await clock.advance(1_000)
    await backend.release([one!]).catch(() => {})
    await clock.advance(1_000)
    const before = looks.length
    await clock.advance(10_000)
    expect(looks).toHaveLength(before)
    await backend.close()
  })
})

describe('what PostgreSQL and its clients say', () => {
  const coded = (code: string, message = 'x') => Object.assign(new Error(message), { code })
  it.each([
    [coded('40P01'), 'undone'],
    [coded('40001'), 'undone'],
    [coded('55P03'), 'undone'],
    [coded('57014'), 'undone'],
    [coded('57P03'), 'undone'],
    // Of a standby.
    [coded('25006'), 'undone'],
    [coded('ECONNREFUSED'), 'undone'],
    [new Error('timeout exceeded when trying to connect'), 'undone'],
    [coded('57P01'), 'unknown'],
    [coded('08006'), 'unknown'],
    [coded('ECONNRESET'), 'unknown'],
    [new Error('Connection terminated unexpectedly'), 'unknown'],
    [new Error('No answer within 5000 ms'), 'unknown'],
    [coded('28P01'), 'final'],
    [coded('42501'), 'final'],
    [coded('22003'), 'final'],
    [coded('CONNECTION_ENDED'), 'final'],
    [new Error('Cannot use a pool after calling end on the pool'), 'final'],
  ] as const)('%s is %s', (error, kind) => {
    expect(postgresFailure(error).kind).toBe(kind)
  })

  it('is told without what was sent', () => {
    const { cause } = postgresFailure(Object.assign(new Error('x'), { code: '22P02', detail: 'secret', parameters: ['secret'], query: 'secret' }))
    expect(JSON.stringify(cause, Object.getOwnPropertyNames(cause))).not.toContain('secret')
  })
})

it('is closed soon, also if its connections cannot be ended', async () => {
  const { database, backend } = open()
  database.answers.claim = () => [['queued', '7', 0, 0, null, false]]
  database.close = () => new Promise(() => {})
  const { listen } = database
  Object.assign(database, { listen: async (...args: Parameters<NonNullable<typeof listen>>) => ({ ...(await listen!(...args)), close: () => new Promise(() => {}) }) })
  await backend.claim([claim], 'queue')
  await settle()
  const startedAt = performance.now()
  await backend.close()
  expect(performance.now() - startedAt).toBeLessThan(3_000)
})
