/** `npm run example:fastify`: an order is paid once, however often and on however many instances somebody clicks. */
import fastify from 'fastify'
import { connect, key } from 'holdfast'
import { lockErrorHandler, lockRoute } from 'holdfast/fastify'
import { announce, onEnd, pack, pay, port } from './shop.mjs'

const locks = await connect()
const app = fastify()

const order = (request) => key`order:${request.params.id}`

app.post('/orders/:id/pay', lockRoute({ locks, key: order }, async (request, reply, lock) => {
  return pay(request.params.id, lock)
}))

app.post('/orders/:id/pack', lockRoute({ locks, key: order, waitMs: 30_000 }, async (request, reply, lock) => {
  return pack(request.params.id, lock)
}))

// For locks that are taken inside of other handlers.
app.setErrorHandler(lockErrorHandler())
app.addHook('onClose', () => locks.close())

announce(await app.listen({ port, listenTextResolver: (address) => address }))
onEnd(() => app.close())
