/** What `@Lock` and `locked()` say at compile time. The decorators here are standard ones; TypeScript's own are told apart at run time. */
import { expectTypeOf } from 'vitest'
import { Lock, locked } from '../../src/decorator/index.js'

interface User {
  readonly id: string
  readonly address: { readonly zip: number }
  readonly tags: readonly string[]
}

class Methods {
  @Lock({ key: (id, amount) => `${id.trim()}:${amount.toFixed()}`, waitMs: 5 })
  async typedByTheMethod(_id: string, _amount: number): Promise<void> {}

  @Lock({ key: 'order:{id}', params: ['id'] })
  async byPosition(_first: string): Promise<void> {}

  @Lock({ key: 'zip:{user.address.zip}:{n}', params: ['user', 'n'] })
  async byPath(_user: User, _n: bigint): Promise<void> {}

  @Lock({ key: (id) => id, afterCommit: (_, tx) => tx.done })
  async afterCommit(_id: string, _tx: { readonly done: Promise<unknown> }): Promise<void> {}

  @Lock({ key: (id) => id })
  async *generator(id: string): AsyncGenerator<string> {
    yield id
  }

  async overloaded(id: string): Promise<void>
  async overloaded(id: string, amount: number): Promise<void>
  @Lock({ key: (id) => id })
  async overloaded(_id: string, _amount?: number): Promise<void> {}

  // @ts-expect-error the method's parameter is a string
  @Lock({ key: (id: number) => String(id) })
  async wrongParameter(_id: string): Promise<void> {}

  // @ts-expect-error there is no such name
  @Lock({ key: 'order:{idd}', params: ['id'] })
  async wrongName(_id: string): Promise<void> {}

  // @ts-expect-error there is no such path
  @Lock({ key: 'order:{user.idd}', params: ['user'] })
  async wrongPath(_user: User): Promise<void> {}

  // @ts-expect-error an object is no part of a key
  @Lock({ key: 'order:{user}', params: ['user'] })
  async wrongType(_user: User): Promise<void> {}

  // @ts-expect-error it may be undefined
  @Lock({ key: 'order:{id}', params: ['id'] })
  async mayBeMissing(_id?: string): Promise<void> {}

  // @ts-expect-error the method has one parameter
  @Lock({ key: 'order:{b}', params: ['a', 'b'] })
  async wrongPosition(_a: string): Promise<void> {}

  // @ts-expect-error a number of milliseconds
  @Lock({ key: 'order:{id}', params: ['id'], waitMs: '5' })
  async wrongOption(_id: string): Promise<void> {}

  // @ts-expect-error there is no such option
  @Lock({ key: 'order:{id}', params: ['id'], wait: 5 })
  async unknownOption(_id: string): Promise<void> {}

  // @ts-expect-error it cannot wait
  @Lock({ key: 'order' })
  synchronous(): number {
    return 1
  }

  // @ts-expect-error it is no method
  @Lock({ key: 'order' })
  field = 1

  // @ts-expect-error it is no method
  @Lock({ key: 'order' })
  get accessor(): number {
    return 1
  }
}
void Methods

// @ts-expect-error a class is no method
@Lock({ key: 'order' })
class Whole {}
void Whole

expectTypeOf(locked(async (id: string, n: number) => [id, n] as const, { key: (id) => id })).toEqualTypeOf<
  (this: unknown, id: string, n: number) => Promise<readonly [string, number]>
>()
expectTypeOf(locked((n: number) => n, { key: '{n}', params: ['n'] })).returns.toEqualTypeOf<Promise<number>>()
// @ts-expect-error there is no such name
void locked((n: number) => n, { key: '{m}', params: ['n'] })
