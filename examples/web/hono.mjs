/** `npm run example:hono`: an order is paid once, however often and on however many instances somebody clicks. */
import { serve } from '@hono/node-server'
import { connect, key } from 'holdfast'
import { lockErrorHandler, lockRoute } from 'holdfast/hono'
import { Hono } from 'hono'
import { announce, onEnd, pack, pay, port } from './shop.mjs'

const locks = await connect()
const app = new Hono()

const order = (c) => key`order:${c.req.param('id')}`

app.post('/orders/:id/pay', lockRoute({ locks, key: order }, async (c, lock) => {
  return c.json(await pay(c.req.param('id'), lock))
}))

app.post('/orders/:id/pack', lockRoute({ locks, key: order, waitMs: 30_000 }, async (c, lock) => {
  return c.json(await pack(c.req.param('id'), lock))
}))

// For locks that are taken inside of other handlers.
app.onError(lockErrorHandler())

const server = serve({ fetch: app.fetch, port }, (info) => announce(`http://localhost:${info.port}`))
onEnd(() => server.close(() => void locks.close()))
