/** `npm run example:express`: an order is paid once, however often and on however many instances somebody clicks. */
import express from 'express'
import { connect, key } from 'holdfast'
import { lockErrorHandler, lockRoute } from 'holdfast/express'
import { announce, onEnd, pack, pay, port } from './shop.mjs'

const locks = await connect()
const app = express()

const order = (req) => key`order:${req.params.id}`

app.post('/orders/:id/pay', lockRoute({ locks, key: order }, async (req, res, lock) => {
  res.json(await pay(req.params.id, lock))
}))

app.post('/orders/:id/pack', lockRoute({ locks, key: order, waitMs: 30_000 }, async (req, res, lock) => {
  res.json(await pack(req.params.id, lock))
}))

// For locks that are taken inside of other handlers.
app.use(lockErrorHandler())

const server = app.listen(port, () => announce(`http://localhost:${server.address().port}`))
onEnd(() => server.close(() => void locks.close()))
