/** Real servers of every framework, and real requests: who pays, who is refused and what it is told, and clients that go. */
import { once } from 'node:events'
import { request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import express from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { lockRoute } from '../../src/http/express.js'
import type { Problem, ProblemOptions } from '../../src/http/problem.js'
import { connect, type DistributedLock, type LockManager } from '../../src/index.js'
import { deferred } from '../support/deferred.js'
import { until } from '../support/until.js'
import { WEB_APPS, type Shop, type WebApp } from '../support/web-apps.js'
import { within } from '../support/within.js'

const MOST_MS = 20_000

describe.each(Object.entries(WEB_APPS))('%s', (_, start) => {
  async function serve(shop: Partial<Shop>, problem?: ProblemOptions, store = memoryBackend()): Promise<WebApp> {
    const nothing = async () => ({})
    const app = await start({ store, shop: { pay: nothing, ship: nothing, ...shop }, ...(problem && { problem }) })
    onTestFinished(() => app.close())
    return app
  }

  const post = (app: WebApp, path: string) => fetch(`${app.url}/orders/${path}`, { method: 'POST' })
  const posts = (app: WebApp, path: string, count: number) => Promise.all(Array.from({ length: count }, () => post(app, path)))

  /** A request whose client can go away. */
  function leaver(app: WebApp, path: string): { leave(): void } {
    const req = request(`${app.url}/orders/${path}`, { method: 'POST' })
    req.on('error', () => {})
    req.end()
    return { leave: () => void req.destroy() }
  }

  async function waiting(locks: LockManager, key: string): Promise<number> {
    for await (const resource of locks.inspect(key)) return resource.waiters.length
    return 0
  }

  it('of 20 requests for one order at once, one pays, and 19 are told why not', async () => {
    let payments = 0
    let arrived = 0
    const app = await serve({
      pay: async (id) => {
        payments++
        await until('the others', async () => arrived === 19)
        return { id, paid: true }
      },
    })
    const answers = await Promise.all(Array.from({ length: 20 }, async () => {
      const response = await post(app, '1/pay')
      if (response.status !== 200) arrived++
      return response
    }))
    expect(answers.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, ...Array.from({ length: 19 }, () => 409)])
    expect(payments).toBe(1)
    for (const answer of answers) {
      if (answer.status === 200) {
        expect(await answer.json()).toEqual({ id: '1', paid: true })
        continue
      }
      expect(answer.headers.get('content-type')).toMatch(/^application\/problem\+json/)
      // What is left of ten seconds.
      expect(Number(answer.headers.get('retry-after'))).toBeGreaterThanOrEqual(9)
      expect(Number(answer.headers.get('retry-after'))).toBeLessThanOrEqual(10)
      const { heldForMs, detail, ...problem } = (await answer.json()) as Problem
      expect(problem).toEqual({ type: 'urn:holdfast:lock-not-acquired', title: 'Lock not acquired', status: 409, key: 'order:1', waiting: 0 })
      expect(detail).toMatch(/^"order:1" is in use\. Try again in \d+ s\.$/)
      expect(heldForMs).toBeGreaterThanOrEqual(0)
      expect(heldForMs).toBeLessThan(MOST_MS)
    }
    expect((await post(app, '1/pay')).status).toBe(200)
  })

  it('requests for different orders do not disturb each other', async () => {
    let atWork = 0
    const app = await serve({
      pay: async (id) => {
        atWork++
        await until('the other', async () => atWork === 2)
        return { id }
      },
    })
    const answers = await within(MOST_MS, 'both', Promise.all([post(app, '1/pay'), post(app, '2/pay')]))
    expect(await Promise.all(answers.map((answer) => answer.json()))).toEqual([{ id: '1' }, { id: '2' }])
  })

  it('with waitMs all are served, one after another', async () => {
    let atWork = 0
    let most = 0
    const app = await serve({
      pay: async (id) => {
        most = Math.max(most, ++atWork)
        await sleep(2)
        atWork--
        return { id }
      },
    })
    const answers = await posts(app, '1/queue', 20)
    expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 20 }, () => 200))
    expect(most).toBe(1)
  })

  it('another status, another type and the owner, where that is asked for', async () => {
    const problem = { status: 423, type: 'https://shop.example/busy', showOwner: true }
    let holder: DistributedLock | undefined
    const go = deferred()
    const app = await serve({
      pay: async (_id, lock) => {
        holder = lock
        await go.promise
        return {}
      },
      ship: (id, locks) => locks.withLock(`order:${id}`, { waitMs: 0 }, async () => ({})),
    }, problem)
    const first = post(app, '1/pay')
    await until('the first', async () => holder !== undefined)
    for (const path of ['1/pay', '1/ship']) {
      const answer = await post(app, path)
      expect(answer.status).toBe(423)
      expect(await answer.json()).toMatchObject({ type: problem.type, status: 423, owner: expect.stringMatching(/./) })
    }
    go.resolve()
    expect((await first).status).toBe(200)
  })

  it('a lock that is not to be had further inside is answered in the same way', async () => {
    const app = await serve({ ship: (id, locks) => locks.withLock(`order:${id}`, { waitMs: 0 }, async () => ({ id })) })
    expect(await (await post(app, '1/ship')).json()).toEqual({ id: '1' })
    const lock = await app.locks.lock('order:1')
    const refused = await post(app, '1/ship')
    expect(refused.status).toBe(409)
    expect(refused.headers.get('content-type')).toMatch(/^application\/problem\+json/)
    const said = await refused.text()
    expect(JSON.parse(said)).toMatchObject({ key: 'order:1', waiting: 0 })
    // The owner is made from it.
    expect(said).not.toContain(String(process.pid))
    await lock.release()
  })

  it('what a handler throws is answered as the framework does it, and the lock is free again', async () => {
    const app = await serve({
      pay: async () => {
        throw new Error('out of stock')
      },
    })
    for (let i = 0; i < 2; i++) expect((await post(app, '1/pay')).status).toBe(500)
    expect(await app.locks.tryLock('order:1')).not.toBeNull()
  })

  it('a failure of ours is no conflict', async () => {
    const app = await serve({})
    await app.locks.close()
    for (const path of ['1/pay', '1/queue']) expect((await post(app, path)).status).toBeGreaterThanOrEqual(500)
  })

  it('a client that goes: the signal aborts, and the next one gets in only when the handler has settled', async () => {
    const log: string[] = []
    const settle = deferred()
    const app = await serve({
      pay: async (id, lock) => {
        if (log.length > 0) {
          log.push('the next begins')
          return { id }
        }
        log.push('begins')
        await once(lock.signal, 'abort')
        log.push('is told')
        await settle.promise
        log.push('settles')
        throw lock.signal.reason
      },
    })
    const first = leaver(app, '1/pay')
    await until('the first', async () => log.length === 1)
    const next = post(app, '1/queue')
    await until('the next', async () => (await waiting(app.locks, 'order:1')) === 1)
    first.leave()
    await until('the signal', async () => log.length === 2)
    await sleep(100)
    expect((await post(app, '1/pay')).status).toBe(409)
    expect(log).toEqual(['begins', 'is told'])
    settle.resolve()
    expect((await within(MOST_MS, 'an answer', next)).status).toBe(200)
    expect(log).toEqual(['begins', 'is told', 'settles', 'the next begins'])
  })

  it('a client that goes while it waits does not wait any more', async () => {
    let served = 0
    const pay = async () => {
      served++
      return {}
    }
    const store = memoryBackend()
    const app = await serve({ pay }, undefined, store)
    // Of another process, so to say: what waits for one of its own is not seen in the store.
    const others = await connect(store)
    onTestFinished(() => others.close())
    const lock = await others.lock('order:1')
    const waiter = leaver(app, '1/queue')
    await until('a waiter', async () => (await waiting(app.locks, 'order:1')) === 1)
    waiter.leave()
    await until('nobody', async () => (await waiting(app.locks, 'order:1')) === 0)
    await lock.release()
    expect((await post(app, '1/queue')).status).toBe(200)
    expect(served).toBe(1)
  })

  it('a client that has its answer may go: the handler goes on', async () => {
    let hasGone: boolean | undefined
    const app = await serve({
      pay: async (id, lock) => {
        void sleep(50).then(() => (hasGone = lock.signal.aborted))
        return { id }
      },
    })
    await (await fetch(`${app.url}/orders/1/pay`, { method: 'POST', headers: { connection: 'close' } })).text()
    await until('the end', async () => hasGone !== undefined)
    expect(hasGone).toBe(false)
  })

  it('a lock that is lost: the signal aborts, and the client is told of it', async () => {
    const app = await serve({
      pay: async (_id, lock) => {
        await once(lock.signal, 'abort')
        throw lock.signal.reason
      },
    })
    const paying = post(app, '1/pay')
    await until('the loss', () => app.locks.forceRelease('order:1', { now: true }))
    const answer = await within(MOST_MS, 'an answer', paying)
    expect(answer.status).toBe(409)
    expect(await answer.json()).toEqual({ type: 'urn:holdfast:ownership-lost', title: 'Ownership lost', status: 409, key: 'order:1' })
  })

  it('a key that cannot be one is the client’s mistake', async () => {
    const app = await serve({})
    const answer = await post(app, `${'x'.repeat(600)}/pay`)
    expect(answer.status).toBe(400)
    expect(await answer.json()).toEqual({ type: 'urn:holdfast:invalid-key', title: 'Invalid key', status: 400 })
  })
})

it('Express: a request that something else has answered while it waited is not answered again, nor carried out', async () => {
  const locks = await connect(memoryBackend())
  const held = await locks.lock('k')
  let calls = 0
  const unhandled: unknown[] = []
  const hear = (reason: unknown) => void unhandled.push(reason)
  process.on('unhandledRejection', hear)
  const app = express()
  app.use((_req, res, next) => {
    setTimeout(() => res.status(503).end('too late'), 20)
    next()
  })
  app.post('/refused', lockRoute({ locks, key: () => 'k', waitMs: 60 }, (_req, res) => void res.end()))
  app.post('/late', lockRoute({ locks, key: () => 'k', waitMs: MOST_MS }, () => calls++))
  const server = app.listen(0, '127.0.0.1')
  onTestFinished(async () => {
    process.off('unhandledRejection', hear)
    server.close()
    await locks.close()
  })
  await once(server, 'listening')
  for (const path of ['refused', 'late']) {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/${path}`, { method: 'POST', headers: { connection: 'close' } })
    expect([answer.status, await answer.text()]).toEqual([503, 'too late'])
  }
  await sleep(200)
  await held.release()
  // Behind that one, which had its turn.
  await locks.withLock('k', { fairness: 'strict' }, () => {})
  expect([unhandled, calls]).toEqual([[], 0])
})
