/** One shop, served by each framework. */
import type { AddressInfo } from 'node:net'
import { serve, type ServerType } from '@hono/node-server'
import { Controller, HttpCode, Module, Param, Post } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import { lockErrorHandler as expressErrors, lockRoute as expressRoute } from '../../src/http/express.js'
import { lockErrorHandler as fastifyErrors, lockRoute as fastifyRoute } from '../../src/http/fastify.js'
import { lockErrorHandler as honoErrors, lockRoute as honoRoute } from '../../src/http/hono.js'
import { HeldLock, HoldfastModule, LockManager, LockRoute } from '../../src/http/nestjs.js'
import type { ProblemOptions } from '../../src/http/problem.js'
import { connect, key as keyFor, type BackendFactory, type DistributedLock } from '../../src/index.js'

export interface Shop {
  /** Under the lock of its order, which `lockRoute` has taken: at once in /pay, and with patience in /queue. */
  pay(id: string, lock: DistributedLock): Promise<object>
  /** Not under a lock: it takes one itself. */
  ship(id: string, locks: LockManager): Promise<object>
}

export interface WebApp {
  readonly url: string
  readonly locks: LockManager
  close(): Promise<void>
}

export interface AppOptions {
  readonly store: BackendFactory
  readonly shop: Shop
  readonly problem?: ProblemOptions
}

const keyOf = (id: string) => keyFor`order:${id}`
const WAIT_MS = 20_000
/** So that it is not Fastify that refuses what is too long for a key. */
const routerOptions = { maxParamLength: 1_000 }

async function onExpress({ store, shop, problem = {} }: AppOptions): Promise<WebApp> {
  const locks = await connect(store)
  const app = express()
  const key = (req: express.Request<{ id: string }>) => keyOf(req.params.id)
  app.post('/orders/:id/pay', expressRoute({ locks, key, problem }, async (req, res, lock) => void res.json(await shop.pay(req.params.id, lock))))
  app.post('/orders/:id/queue', expressRoute({ locks, key, waitMs: WAIT_MS }, async (req, res, lock) => void res.json(await shop.pay(req.params.id, lock))))
  app.post('/orders/:id/ship', async (req, res) => void res.json(await shop.ship(req.params.id, locks)))
  app.use(expressErrors(problem))
  const failed: express.ErrorRequestHandler = (error, _req, res, _next) => void res.status(500).json({ message: error.message })
  app.use(failed)
  const server = app.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  return { url: urlOf(server), locks, close: () => closed(server, locks) }
}

async function onFastify({ store, shop, problem = {} }: AppOptions): Promise<WebApp> {
  const locks = await connect(store)
  const app = fastify({ routerOptions })
  app.setErrorHandler(fastifyErrors(problem))
  const key = (request: { readonly params: { readonly id: string } }) => keyOf(request.params.id)
  type Order = { Params: { id: string } }
  app.post<Order>('/orders/:id/pay', fastifyRoute({ locks, key, problem }, async (request, _reply, lock) => shop.pay(request.params.id, lock)))
  app.post<Order>('/orders/:id/queue', fastifyRoute({ locks, key, waitMs: WAIT_MS }, async (request, _reply, lock) => shop.pay(request.params.id, lock)))
  app.post<Order>('/orders/:id/ship', async (request) => shop.ship(request.params.id, locks))
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const close = async () => {
    app.server.closeAllConnections()
    await app.close()
    await locks.close()
  }
  return { url, locks, close }
}

async function onHono({ store, shop, problem = {} }: AppOptions): Promise<WebApp> {
  const locks = await connect(store)
  const app = new Hono()
  app.onError(honoErrors(problem, (error, c) => c.json({ message: error.message }, 500)))
  app.post('/orders/:id/pay', honoRoute({ locks, key: (c) => keyOf(c.req.param('id')!), problem }, async (c, lock) => c.json(await shop.pay(c.req.param('id')!, lock))))
  app.post('/orders/:id/queue', honoRoute({ locks, key: (c) => keyOf(c.req.param('id')!), waitMs: WAIT_MS }, async (c, lock) => c.json(await shop.pay(c.req.param('id')!, lock))))
  app.post('/orders/:id/ship', async (c) => c.json(await shop.ship(c.req.param('id'), locks)))
  const server = await new Promise<ServerType>((resolve) => {
    const listening: ServerType = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, () => resolve(listening))
  })
  return { url: urlOf(server), locks, close: () => closed(server, locks) }
}

const onNest = (platform: 'express' | 'fastify') => async ({ store, shop, problem = {} }: AppOptions): Promise<WebApp> => {
  class Orders {
    pay(id: string, lock: DistributedLock): Promise<object> {
      return shop.pay(id, lock)
    }

    queue(id: string, lock: DistributedLock): Promise<object> {
      return shop.pay(id, lock)
    }

    ship(id: string): Promise<object> {
      return shop.ship(id, app.get(LockManager))
    }
  }
  const key = (request: { readonly params: { readonly id: string } }) => keyOf(request.params.id)
  decorate(Orders, 'pay', [Post(':id/pay'), HttpCode(200), LockRoute({ key })], [Param('id'), HeldLock()])
  decorate(Orders, 'queue', [Post(':id/queue'), HttpCode(200), LockRoute({ key, waitMs: WAIT_MS })], [Param('id'), HeldLock()])
  decorate(Orders, 'ship', [Post(':id/ship'), HttpCode(200)], [Param('id')])
  Controller('orders')(Orders)
  class Main {}
  Module({ imports: [HoldfastModule.forRoot({ store, problem })], controllers: [Orders] })(Main)
  const app = await NestFactory.create(Main, platform === 'express' ? new ExpressAdapter() : new FastifyAdapter({ routerOptions }), { logger: false, forceCloseConnections: true })
  await app.listen(0, '127.0.0.1')
  return { url: (await app.getUrl()).replace('[::1]', '127.0.0.1'), locks: app.get(LockManager), close: () => app.close() }
}

/** What the compiler makes of decorators, where it is told to; here it is not. */
export function decorate(of: { readonly prototype: any }, name: string, method: readonly MethodDecorator[], parameters: readonly ParameterDecorator[] = []): void {
  parameters.forEach((parameter, i) => parameter(of.prototype, name, i))
  let descriptor = Object.getOwnPropertyDescriptor(of.prototype, name)!
  for (const one of method.toReversed()) descriptor = (one(of.prototype, name, descriptor) as PropertyDescriptor | undefined) ?? descriptor
  Object.defineProperty(of.prototype, name, descriptor)
}

function urlOf(server: Pick<ServerType, 'address'>): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function closed(server: ServerType, locks: LockManager): Promise<void> {
  const isClosed = new Promise((resolve) => server.close(resolve))
  if ('closeAllConnections' in server) server.closeAllConnections()
  await isClosed
  await locks.close()
}

export const WEB_APPS: Readonly<Record<string, (options: AppOptions) => Promise<WebApp>>> = {
  Express: onExpress,
  Fastify: onFastify,
  Hono: onHono,
  'NestJS on Express': onNest('express'),
  'NestJS on Fastify': onNest('fastify'),
}
