import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { currentLock, Lock, locked, setLocks } from '../../src/decorator/index.js'
import { BackendError, ConfigurationError, createLocks, InvalidKeyError, LockNotAcquiredError, type LockManager } from '../../src/index.js'
import { deferred } from '../support/deferred.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld } from '../support/manual-world.js'

const opened: LockManager[] = []
function manager(): LockManager {
  const locks = createLocks(memoryBackend())
  opened.push(locks)
  return locks
}

afterEach(async () => {
  setLocks(undefined)
  await Promise.all(opened.splice(0).map((locks) => locks.close()))
})

/** What was held while something ran. */
async function held(locks: LockManager): Promise<string[]> {
  const keys = []
  for await (const { key } of locks.inspect()) keys.push(key)
  return keys
}

describe('@Lock', () => {
  it('runs a method under the lock that its arguments name', async () => {
    class Orders {
      readonly locks = manager()

      @Lock({ key: (orderId, lines) => `order:${orderId.trim()}:${lines.length}` })
      async pay(_orderId: string, lines: readonly number[]) {
        return { held: await held(this.locks), key: currentLock()?.key, fence: currentLock()?.fence, paid: lines.length }
      }
    }
    const orders = new Orders()
    expect(await orders.pay('7', [1, 2])).toEqual({ held: ['order:7:2'], key: 'order:7:2', fence: expect.any(BigInt), paid: 2 })
    expect(await held(orders.locks)).toEqual([])
    expect(currentLock()).toBeUndefined()
  })

  it('refuses at once if another holds it, and waits if it is told to', async () => {
    class Orders {
      readonly locks = manager()
      running = 0
      most = 0

      @Lock({ key: 'order:{orderId}' })
      async pay(orderId: string) {
        await this.work()
        return orderId
      }

      @Lock({ key: 'order:{orderId}', waitMs: 5_000 })
      async payInTurn(orderId: string) {
        await this.work()
        return orderId
      }

      async work() {
        this.most = Math.max(this.most, ++this.running)
        await sleep(10)
        this.running--
      }
    }
    const orders = new Orders()
    const tries = await Promise.allSettled(Array.from({ length: 5 }, () => orders.pay('1')))
    expect(tries.filter(({ status }) => status === 'fulfilled')).toHaveLength(1)
    for (const one of tries) if (one.status === 'rejected') expect(one.reason).toBeInstanceOf(LockNotAcquiredError)
    expect(await Promise.all([orders.pay('1'), orders.pay('2')])).toEqual(['1', '2'])
    orders.most = 0
    await Promise.all(Array.from({ length: 5 }, () => orders.payInTurn('1')))
    expect(orders.most).toBe(1)
  })

  it('takes placeholders by the position of params, with paths, and escapes what they bring', async () => {
    interface User {
      readonly id: string
      readonly address: { readonly zip: number }
    }
    class Users {
      readonly locks = manager()

      @Lock({ key: 'user:{user.id}:{user.address.zip}/{n}', params: ['user', 'n'] })
      async move(_a: User, _b: bigint) {
        return currentLock()!.key
      }
    }
    expect(await new Users().move({ id: 'a:b/c', address: { zip: 4 } }, 9n)).toBe('user:a%3Ab%2Fc:4/9')
  })

  it('never makes one key of many: what is not there is an error', async () => {
    class Users {
      readonly locks = manager()

      @Lock({ key: 'user:{user.id}', params: ['user'] })
      async rename(_user: { readonly id: string }) {}
    }
    const users = new Users()
    for (const bad of [undefined, null, {}, { id: undefined }, { id: null }, { id: '' }]) {
      await expect(users.rename(bad as never)).rejects.toThrow(InvalidKeyError)
    }
    expect(await held(users.locks)).toEqual([])
  })

  it.each([
    ['a name that there is not', () => Lock({ key: 'order:{id}', params: ['orderId'] as never }), /names no parameter/],
    ['placeholders that run into each other', () => Lock({ key: '{one}{two}', params: ['one', 'two'] as never }), /between them/],
    ['a brace that is none', () => Lock({ key: 'order:{one', params: ['one'] as never }), /no template/],
    ['an empty placeholder', () => Lock({ key: 'order:{}', params: ['one'] as never }), /no template/],
    ['an option that there is not', () => Lock({ key: 'order', wait: 3 } as never), /no lock option "wait"/],
    ['a TTL that is none', () => Lock({ key: 'order', ttlMs: 1.5 }), /whole number/],
  ])('refuses %s when it decorates', (_, make, message) => {
    const decorate = () => make()(async () => {}, { kind: 'method', name: 'pay' } as never)
    expect(decorate).toThrow(message)
    expect(decorate).toThrow(/./)
  })

  it('takes names from the source only where they are certain', () => {
    const decorate = (method: (...args: never[]) => Promise<void>) => () =>
      Lock({ key: 'order:{orderId}' })(method as never, { kind: 'method', name: 'pay' } as never)
    expect(decorate(async (orderId: string) => void orderId)).not.toThrow()
    expect(decorate(async function (first = 1, /* a comment */ orderId = 'x') { void [first, orderId] })).not.toThrow()
    // What a minifier leaves, destructuring, the rest, and a wrapper of another decorator.
    expect(decorate(async (e: string) => void e)).toThrow(/cannot be told/)
    expect(decorate(async (e: string, orderId: string) => void [e, orderId])).toThrow(/cannot be told/)
    expect(decorate(async ({ orderId }: { orderId: string }) => void orderId)).toThrow(/cannot be told/)
    expect(decorate(async (...orderId: string[]) => void orderId)).toThrow(/cannot be told/)
    expect(decorate(async (other: string, orderId = (() => 1)()) => void [other, orderId])).toThrow(/cannot be told/)
    expect(decorate(async (other: string) => void other)).toThrow(/names no parameter.*params: \['orderId'\]/)
    // No comment, but two strings: taken for one, it would hide what is between them.
    expect(decorate(async function (first = '/*', second: string, third = '*/', orderId: string) { void [first, second, third, orderId] })).toThrow(/cannot be told/)
  })

  it('works on static and private methods, with inheritance and `this`', async () => {
    const locks = manager()
    setLocks(locks)
    class Base {
      protected readonly name = 'base'

      @Lock({ key: (id) => `base:${id}` })
      async run(_id: number): Promise<string[]> {
        return [this.name, ...(await held(locks))]
      }

      @Lock({ key: 'static:{id}', params: ['id'] })
      static async make(_id: number) {
        return [this === Base, ...(await held(locks))]
      }

      @Lock({ key: (id) => `private:${id}` })
      async #hidden(_id: number) {
        return [this.name, ...(await held(locks))]
      }

      hidden(id: number) {
        return this.#hidden(id)
      }
    }
    class Derived extends Base {
      protected override readonly name = 'derived' as 'base'

      override async run(id: number) {
        return [...(await super.run(id)), 'over']
      }
    }
    expect(await new Derived().run(1)).toEqual(['derived', 'base:1', 'over'])
    expect(await Base.make(2)).toEqual([true, 'static:2'])
    expect(await new Derived().hidden(3)).toEqual(['derived', 'private:3'])
  })

  it('holds for as long as an async generator runs, and each of its steps is under the lock', async () => {
    class Reports {
      readonly locks = manager()
      ended = 0

      @Lock({ key: (id) => `report:${id}` })
      async *pages(id: string): AsyncGenerator<string, string, number | undefined> {
        try {
          const got = yield `${currentLock()!.key} ${id}`
          await sleep(1)
          yield `${currentLock()!.key} ${got}`
          return 'end'
        } finally {
          this.ended++
        }
      }
    }
    const reports = new Reports()
    const pages = reports.pages('1')
    expect(await held(reports.locks)).toEqual([])
    expect(await pages.next()).toEqual({ done: false, value: 'report:1 1' })
    expect(await held(reports.locks)).toEqual(['report:1'])
    expect(await pages.next(5)).toEqual({ done: false, value: 'report:1 5' })
    expect(await pages.next()).toEqual({ done: true, value: 'end' })
    expect(await held(reports.locks)).toEqual([])
    for await (const _ of reports.pages('2')) break
    expect(await held(reports.locks)).toEqual([])
    const failing = reports.pages('3')
    await failing.next()
    await expect(failing.throw(new Error('stop'))).rejects.toThrow('stop')
    expect([await held(reports.locks), reports.ended]).toEqual([[], 3])
  })

  it('passes the method’s error on, and leaves name, length and properties as they were', async () => {
    class Orders {
      readonly locks = manager()

      @Lock({ key: (orderId) => orderId })
      @marked
      async pay(_orderId: string, _amount: number): Promise<void> {
        throw new RangeError('too much')
      }
    }
    function marked<F extends Function>(method: F, { kind }: ClassMethodDecoratorContext): void {
      Object.assign(method, { mark: kind })
    }
    const orders = new Orders()
    await expect(orders.pay('1', 2)).rejects.toThrow(RangeError)
    expect(await held(orders.locks)).toEqual([])
    const pay = Object.getOwnPropertyDescriptor(Orders.prototype, 'pay')!.value as Function & { readonly mark?: string }
    expect([pay.name, pay.length, pay.mark]).toEqual(['pay', 2, 'method'])
  })

  it('tells of a release that fails, and hides neither the result nor the error of the method', async () => {
    const { manager, store, named } = manualWorld()
    const error = new BackendError('gone', { transient: false })
    store.fail('release', error, { times: Infinity })
    const locks = manager()
    const paying = locked(async (amount: number) => {
      if (amount > 5) throw new RangeError('too much')
      return amount
    }, { key: (amount) => `amount:${amount}`, locks })
    expect(await paying(2)).toBe(2)
    await expect(paying(7)).rejects.toThrow(RangeError)
    await settle()
    expect(new Set(named('release-failed').map(({ key }) => key))).toEqual(new Set(['amount:2', 'amount:7']))
  })

  it('releases only after the commit that it is told of, and not if that cannot be told', async () => {
    class Orders {
      readonly locks = manager()
      done = 0

      @Lock({ key: (orderId) => orderId, afterCommit: (_, tx) => tx.committed })
      async pay(_orderId: string, _tx: { readonly committed: Promise<unknown> }) {
        return ++this.done
      }
    }
    const orders = new Orders()
    const tx = deferred()
    expect(await orders.pay('1', { committed: tx.promise })).toBe(1)
    expect(await held(orders.locks)).toEqual(['1'])
    await expect(orders.pay('1', { committed: tx.promise })).rejects.toThrow(LockNotAcquiredError)
    tx.reject(new Error('rolled back'))
    await expect.poll(() => held(orders.locks)).toEqual([])
    await expect(orders.pay('1', {} as never)).rejects.toThrow(ConfigurationError)
    expect([orders.done, await held(orders.locks)]).toEqual([1, []])
  })

  it('bears with a commit that fails while the method runs', async () => {
    const locks = manager()
    const tx = deferred()
    const unhandled: unknown[] = []
    const hear = (reason: unknown) => void unhandled.push(reason)
    process.on('unhandledRejection', hear)
    const pay = locked(async (_committed: Promise<unknown>) => {
      tx.reject(new Error('rolled back'))
      await sleep(5)
    }, { key: () => 'k', locks, afterCommit: (committed) => committed })
    await pay(tx.promise)
    await expect.poll(() => held(locks)).toEqual([])
    process.off('unhandledRejection', hear)
    expect(unhandled).toEqual([])
  })

  it('refuses a generator that it cannot see: its steps would run without the lock', async () => {
    const locks = manager()
    async function* pages() {
      yield currentLock()?.key
    }
    const wrapped = locked(function report() { return pages() }, { key: 'k', locks }) as unknown as () => Promise<unknown>
    await expect(wrapped()).rejects.toThrow('report returns an async generator and is none itself')
    expect(await held(locks)).toEqual([])
  })

  it('finds its manager: given, of the instance, common, or none', async () => {
    const [given, own, common] = [manager(), manager(), manager()]
    const where = async () => Object.entries({ given, own, common }).find(([, locks]) => locks.owner === owner)?.[0]
    let owner = ''
    const see = async (locks: LockManager) => {
      for await (const { holders } of locks.inspect()) if (holders[0]) owner = locks.owner
    }
    const look = async () => {
      for (const locks of [given, own, common]) await see(locks)
      return where()
    }
    class WithOwn {
      readonly locks = own
      @Lock({ key: 'k', locks: given })
      async given() { return look() }
      @Lock({ key: 'k', locks: (self: WithOwn) => self.locks })
      async byFunction() { return look() }
      @Lock({ key: 'k' })
      async own() { return look() }
    }
    class Without {
      @Lock({ key: 'k' })
      async any() { return look() }
    }
    const one = new WithOwn()
    expect([await one.given(), await one.byFunction(), await one.own()]).toEqual(['given', 'own', 'own'])
    await expect(new Without().any()).rejects.toThrow(/any has no lock manager/)
    setLocks(common)
    expect(await new Without().any()).toBe('common')
    expect(() => setLocks({} as never)).toThrow(ConfigurationError)
  })

  it('refuses what is no method, and a generator that cannot wait', () => {
    const decorator = Lock({ key: 'k' }) as (...args: unknown[]) => unknown
    expect(() => decorator(undefined, { kind: 'field', name: 'x' })).toThrow(/for methods/)
    expect(() => decorator({}, 'x', undefined)).toThrow(/for methods/)
    expect(() => decorator({}, 'x', { get: () => 1 })).toThrow(/for methods/)
    expect(() => decorator(function* () {}, { kind: 'method', name: 'g' })).toThrow(/async generator/)
    expect(() => Lock(undefined as never)).toThrow(/needs a key/)
  })

  it('in the older mode changes the value of the descriptor only, and copies metadata', async () => {
    const metadata = new Map<object, Map<unknown, unknown>>()
    const api = Reflect as unknown as Record<string, unknown>
    const of = (target: object) => metadata.get(target) ?? metadata.set(target, new Map()).get(target)!
    Object.assign(api, {
      getOwnMetadataKeys: (target: object) => [...of(target).keys()],
      getOwnMetadata: (key: unknown, target: object) => of(target).get(key),
      defineMetadata: (key: unknown, value: unknown, target: object) => of(target).set(key, value),
    })
    try {
      const target = { locks: manager(), async pay(orderId: string) { return [orderId, await held(this.locks)] } }
      const descriptor = Object.getOwnPropertyDescriptor(target, 'pay')!
      of(descriptor.value as object).set('path', '/pay')
      const made = Lock({ key: 'order:{orderId}' })(target, 'pay', descriptor as never) as PropertyDescriptor
      expect(made).toMatchObject({ enumerable: true, writable: true, configurable: true })
      expect(of(made.value as object).get('path')).toBe('/pay')
      expect(await (made.value as Function).call(target, '1')).toEqual(['1', ['order:1']])
    } finally {
      for (const name of ['getOwnMetadataKeys', 'getOwnMetadata', 'defineMetadata']) delete api[name]
    }
  })
})

describe('locked()', () => {
  it('is the same for a function', async () => {
    const locks = manager()
    const pay = locked(async (orderId: string, amount: number) => [orderId, amount, await held(locks)] as const, { key: (orderId) => `o:${orderId}`, locks })
    expect(await pay('1', 2)).toEqual(['1', 2, ['o:1']])
    const sum = locked((first: number, second: number) => first + second, { key: '{first}/{second}', params: ['first', 'second'], locks })
    const result: Promise<number> = sum(1, 2)
    expect(await result).toBe(3)
    expect(() => locked(undefined as never, { key: 'k' })).toThrow(ConfigurationError)
  })

  it('nests, and the innermost lock is the current one', async () => {
    const locks = manager()
    const inner = locked(async () => currentLock()!.key, { key: 'inner', locks })
    const outer = locked(async () => [await inner(), currentLock()!.key], { key: 'outer', locks })
    expect(await outer()).toEqual(['inner', 'outer'])
  })
})
