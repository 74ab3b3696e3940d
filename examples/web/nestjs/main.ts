/** `npm run example:nestjs`: an order is paid once, however often and on however many instances somebody clicks. */
import 'reflect-metadata'
import { Controller, HttpCode, Injectable, Module, Param, Post } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { key, type DistributedLock } from 'holdfast'
import { currentLock, HeldLock, HoldfastModule, Lock, LockRoute } from 'holdfast/nestjs'
import { announce, pack, pay, port } from '../shop.mjs'

@Injectable()
class Orders {
  /** Whoever calls it, from wherever: the lock belongs to the method. */
  @Lock({ key: (id) => key`order:${id}`, waitMs: 30_000 })
  async pack(id: string) {
    return pack(id, currentLock()!)
  }
}

@Controller('orders')
class OrdersController {
  constructor(private readonly orders: Orders) {}

  /** The lock belongs to the request: if the client goes, `lock.signal` aborts. */
  @Post(':id/pay')
  @HttpCode(200)
  @LockRoute({ key: (request) => key`order:${request.params.id}` })
  async pay(@Param('id') id: string, @HeldLock() lock: DistributedLock) {
    return pay(id, lock)
  }

  @Post(':id/pack')
  @HttpCode(200)
  async pack(@Param('id') id: string) {
    return this.orders.pack(id)
  }
}

@Module({ imports: [HoldfastModule.forRoot({})], controllers: [OrdersController], providers: [Orders] })
class Shop {}

const app = await NestFactory.create(Shop, { logger: ['error', 'warn'] })
app.enableShutdownHooks()
await app.listen(port)
announce(`http://localhost:${app.getHttpServer().address().port}`)
