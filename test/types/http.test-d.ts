/** What handlers and keys are typed as, from the frameworks' own types. */
import type { Http2ServerResponse } from 'node:http2'
import express, { type Request } from 'express'
import fastify from 'fastify'
import { Hono, type Context, type Env } from 'hono'
import { expectTypeOf } from 'vitest'
import { lockRoute as expressRoute } from '../../src/http/express.js'
import { lockErrorHandler as fastifyErrors, lockRoute as fastifyRoute } from '../../src/http/fastify.js'
import { lockErrorHandler as honoErrors, lockRoute as honoRoute } from '../../src/http/hono.js'
import { HoldfastModule, LockRoute } from '../../src/http/nestjs.js'
import type { DistributedLock, LockManager } from '../../src/index.js'

declare const locks: LockManager

{
  const app = express()
  app.post('/orders/:id/pay', expressRoute({ locks, key: (req) => req.params.id }, async (req, res, lock) => {
    expectTypeOf(req.get('accept')).toEqualTypeOf<string | undefined>()
    expectTypeOf(lock).toEqualTypeOf<DistributedLock>()
    res.status(200).json(req.params.id)
  }))
  type Paying = Request<{ id: string }, { paid: boolean }>
  app.post('/orders/:id/pay', expressRoute({ key: (req: Paying) => req.params.id }, (req, res) => {
    expectTypeOf(req.params).toEqualTypeOf<{ id: string }>()
    res.json({ paid: true })
    // @ts-expect-error that is no answer of this route
    res.json({ paid: 'yes' })
  }))
  // @ts-expect-error there is no such parameter
  app.post('/orders/:id/pay', expressRoute({ key: (req: Paying) => req.params.oid }, () => {}))
  // @ts-expect-error a number of milliseconds
  app.post('/orders/:id/pay', expressRoute({ key: (req) => req.params.id, waitMs: '5' }, () => {}))
  // @ts-expect-error a key is text
  app.post('/orders/:id/pay', expressRoute({ key: () => 5 }, () => {}))
  // @ts-expect-error there is no such option
  app.post('/orders/:id/pay', expressRoute({ key: (req) => req.params.id, status: 423 }, () => {}))
  app.post('/orders/:id/pay', expressRoute({ key: (req) => req.params.id, problem: { status: 423 } }, () => {}))
}

{
  const app = fastify()
  app.setErrorHandler(fastifyErrors({ status: 423 }))
  app.post<{ Params: { id: string }; Body: { amount: number } }>('/orders/:id/pay', fastifyRoute({ locks, key: (request) => {
    expectTypeOf(request.params).toEqualTypeOf<{ id: string }>()
    return request.params.id
  } }, async function (request, reply, lock) {
    expectTypeOf(request.body.amount).toEqualTypeOf<number>()
    expectTypeOf(lock).toEqualTypeOf<DistributedLock>()
    reply.code(201)
    return this.version
  }))
  // @ts-expect-error there is no such parameter
  app.post<{ Params: { id: string } }>('/orders/:id/pay', fastifyRoute({ key: (request) => request.params.oid }, () => {}))
}

{
  const app = fastify({ http2: true })
  app.setErrorHandler(fastifyErrors())
  app.post<{ Params: { id: string } }>('/orders/:id/pay', fastifyRoute({ locks, key: (request) => request.params.id }, async (request, reply, lock) => {
    expectTypeOf(request.params).toEqualTypeOf<{ id: string }>()
    expectTypeOf(reply.raw).toEqualTypeOf<Http2ServerResponse>()
    return lock.key
  }))
}

{
  interface Shop extends Env {
    Variables: { user: string }
  }
  const app = new Hono<Shop>()
  app.onError(honoErrors())
  app.post('/orders/:id/pay', honoRoute({ locks, key: (c: Context<Shop>) => c.get('user') }, async (c, lock) => {
    expectTypeOf(c.get('user')).toEqualTypeOf<string>()
    expectTypeOf(lock).toEqualTypeOf<DistributedLock>()
    return c.json({ paid: true })
  }))
  // @ts-expect-error a handler gives a response
  app.post('/orders/:id/pay', honoRoute({ key: () => 'k' }, async () => 5))
}

{
  HoldfastModule.forRoot({ store: 'memory:', ttlMs: 5_000, problem: { status: 423 }, isGlobal: false })
  HoldfastModule.forRootAsync({ useFactory: async () => ({ store: 'memory:' }) })
  LockRoute({ key: (request) => request.params.id, waitMs: 5 })
  // @ts-expect-error there is no such option
  HoldfastModule.forRoot({ url: 'memory:' })
  // @ts-expect-error filters have it
  LockRoute({ key: () => 'k', problem: { status: 423 } })
}
