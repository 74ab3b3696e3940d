/** What is said to clients, and to those who configure it. The frameworks are in test/process/web.test.ts. */
import { EventEmitter, getEventListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { describe, expect, it, onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { Blocker } from '../../src/core/backend.js'
import { LockedError } from '../../src/core/errors.js'
import { lockErrorHandler as expressErrors, lockRoute as expressRoute } from '../../src/http/express.js'
import { lockErrorHandler as fastifyErrors, lockRoute as fastifyRoute } from '../../src/http/fastify.js'
import { goneSignal } from '../../src/http/gone.js'
import { lockErrorHandler as honoErrors, lockRoute as honoRoute } from '../../src/http/hono.js'
import { answerTo, type ProblemOptions } from '../../src/http/problem.js'
import { Route } from '../../src/http/route.js'
import { BackendError, ConfigurationError, createLocks, LockAlreadyHeldError, LockNotAcquiredError, OwnershipLostError } from '../../src/index.js'

const holder = { owner: 'host-1:77#ab', epoch: 1n, heldForMs: 1_234.5, expiresInMs: 4_321 }
const refused = (blocker?: Partial<Blocker>) =>
  new LockNotAcquiredError('k', 'Lock not acquired: "k" is held by host-1:77#ab.', blocker && { holder, ahead: 0, waiting: 3, ...blocker })

function told(error: unknown, options?: ProblemOptions) {
  const answer = answerTo(error, options)
  return answer && { ...answer, body: JSON.parse(answer.body) as unknown }
}

describe('a refusal', () => {
  it('is told with the age of the hold, the number of those who wait, and when to try again', () => {
    expect(told(refused({}))).toEqual({
      status: 409,
      headers: { 'content-type': 'application/problem+json', 'retry-after': '5' },
      body: {
        type: 'urn:holdfast:lock-not-acquired',
        title: 'Lock not acquired',
        status: 409,
        detail: '"k" is in use. Try again in 5 s.',
        key: 'k',
        heldForMs: 1_235,
        waiting: 3,
      },
    })
  })

  it('tells the owner only if it is asked for', () => {
    expect(answerTo(refused({}))!.body).not.toContain('host-1')
    expect(told(refused({}), { showOwner: true })!.body).toMatchObject({ owner: 'host-1:77#ab' })
  })

  it('has the status and the type that are asked for', () => {
    expect(told(refused({}), { status: 423, type: 'https://shop.example/busy' })).toMatchObject({ status: 423, body: { status: 423, type: 'https://shop.example/busy' } })
  })

  it('by a hold that never expires does not say when to try again', () => {
    const answer = told(refused({ holder: { ...holder, expiresInMs: undefined, heldForMs: undefined } }))
    expect(answer).toEqual({
      status: 409,
      headers: { 'content-type': 'application/problem+json' },
      body: { type: 'urn:holdfast:lock-not-acquired', title: 'Lock not acquired', status: 409, detail: '"k" is in use.', key: 'k', waiting: 3 },
    })
  })

  it('by those who only wait, or by one that ends at once, says a second', () => {
    expect(told(refused({ holder: undefined }))!.headers).toMatchObject({ 'retry-after': '1' })
    expect(told(refused({ holder: { ...holder, expiresInMs: 0 } }))!.headers).toMatchObject({ 'retry-after': '1' })
  })

  it('of which nothing is known is one all the same', () => {
    expect(told(refused())!.body).toEqual(expect.objectContaining({ status: 409, key: 'k' }))
  })

  it('of a mutex is one, too', () => {
    expect(told(new LockedError('m', 'x'), { status: 423 })).toMatchObject({ status: 423, body: { title: 'Locked', type: 'urn:holdfast:locked', key: 'm' } })
  })
})

it('another error of a client’s doing has its own status, and nothing of its message', () => {
  expect(told(new OwnershipLostError('k', 'it was revoked'), { status: 423 })).toEqual({
    status: 409,
    headers: { 'content-type': 'application/problem+json' },
    body: { type: 'urn:holdfast:ownership-lost', title: 'Ownership lost', status: 409, key: 'k' },
  })
})

it('what is none of ours, or our own failure, is not answered', () => {
  for (const error of [new Error('x'), undefined, { status: 409 }, new BackendError('x', { transient: true }), new ConfigurationError('x'), new LockAlreadyHeldError('k')]) expect(answerTo(error)).toBeUndefined()
})

describe.each([
  ['Express', expressRoute, expressErrors],
  ['Fastify', fastifyRoute, fastifyErrors],
  ['Hono', honoRoute, honoErrors],
] as const)('%s', (_, lockRoute: any, lockErrorHandler: (problem?: any) => unknown) => {
  const handler = () => {}

  it('says at the start what is wrong with options', () => {
    expect(() => lockRoute({}, handler)).toThrow('needs a key, as a function of the request')
    expect(() => lockRoute({ key: 'order:{id}' }, handler)).toThrow('needs a key, as a function of the request')
    expect(() => lockRoute({ key: () => 'k', ttl: 5 }, handler)).toThrow('"ttl"')
    expect(() => lockRoute({ key: () => 'k', waitMs: 'x' }, handler)).toThrow('waitMs')
    for (const wrong of [lockErrorHandler, (problem: object) => lockRoute({ key: () => 'k', problem }, handler)]) {
      expect(() => wrong({ status: 200 })).toThrow('status is one of an error, such as 409 or 423, not 200.')
      expect(() => wrong({ code: 409 })).toThrow('There is no problem option "code"')
      expect(() => wrong({ type: 5 })).toThrow('type is a URI')
      expect(() => wrong({ showOwner: 'yes' })).toThrow('showOwner is true or false')
    }
  })

  it('needs a handler', () => {
    expect(() => lockRoute({ key: () => 'k' })).toThrow('lockRoute(options, handler) needs a handler.')
  })
})

it('Hono: what else is thrown is answered as without us, with the headers that others have set', async () => {
  const answers = [new Hono(), new Hono().onError(honoErrors())].map(async (app) => {
    app.use(async (c, next) => {
      c.header('x-request', '7')
      await next()
    })
    app.get('/', () => {
      throw new HTTPException(401, { message: 'who are you?' })
    })
    const answer = await app.request('/')
    return [answer.status, answer.headers.get('x-request'), await answer.text()]
  })
  expect(await Promise.all(answers)).toEqual([[401, '7', 'who are you?'], [401, '7', 'who are you?']])
})

it.each([
  ['the signal’s reason', (signal: AbortSignal) => signal.throwIfAborted()],
  ['what Node’s functions make of it', (signal: AbortSignal) => sleep(1, undefined, { signal })],
])('a handler that ends with %s, since the client has gone, is no error', async (_, work) => {
  const locks = createLocks(memoryBackend())
  onTestFinished(() => locks.close())
  const client = new AbortController()
  const route = new Route({ locks, key: () => 'k' })
  const outcome = await route.run({}, client.signal, (lock) => {
    client.abort(new Error('gone'))
    return work(lock.signal)
  })
  expect(outcome).toMatchObject({ answer: { status: 499 } })
  const other = route.run({}, new AbortController().signal, () => sleep(1, undefined, { signal: AbortSignal.abort() }))
  await expect(other).rejects.toThrow('aborted')
})

describe('a route', () => {
  const never = () => new AbortController().signal
  function routeOf(options: { readonly signal?: AbortSignal } = {}) {
    const locks = createLocks(memoryBackend())
    onTestFinished(() => locks.close())
    return new Route({ locks, key: () => 'k', ...options })
  }

  it('leaves what its handler throws to the framework, even if it looks like a refusal of its own', async () => {
    const error = refused({})
    await expect(routeOf().run({}, never(), () => Promise.reject(error))).rejects.toBe(error)
  })

  it('follows a signal of its own, too, and leaves nothing on it', async () => {
    const server = new AbortController()
    const route = routeOf({ signal: server.signal })
    await route.run({}, never(), () => 1)
    expect(getEventListeners(server.signal, 'abort')).toEqual([])
    const reason = new Error('the server ends')
    const ended = route.run({}, never(), ({ signal }) => {
      server.abort(reason)
      return signal.throwIfAborted()
    })
    await expect(ended).rejects.toBe(reason)
  })
})

describe('a client', () => {
  const response = (state: object) => Object.assign(new EventEmitter(), { writableEnded: false, destroyed: false }, state)

  it('has gone if the connection ends before the answer', () => {
    const open = response({})
    const signal = goneSignal(open)
    expect(signal.aborted).toBe(false)
    open.emit('close')
    expect(signal.aborted).toBe(true)
    expect((signal.reason as Error).name).toBe('AbortError')
  })

  it('has not gone if it has its answer', () => {
    const answered = response({ writableEnded: true })
    const signal = goneSignal(answered)
    answered.emit('close')
    expect(signal.aborted).toBe(false)
  })

  it('may have gone before anybody asks', () => {
    expect(goneSignal(response({ destroyed: true })).aborted).toBe(true)
  })
})
