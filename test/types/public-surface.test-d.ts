/** The types of the public surface. Nothing here runs: `npm run typecheck` reads it. */
import { Cluster, Redis } from 'ioredis'
import { Cluster as ValkeyCluster, Redis as Valkey } from 'iovalkey'
import { createClient, createClientPool, createCluster, createSentinel, RESP_TYPES } from 'redis'
import { expectTypeOf } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { redisBackend, type RedisDriver } from '../../src/backends/redis/index.js'
import {
  BackendError, connect, createLocks, HoldfastError, jsonKey, key, LockedError, LockNotAcquiredError, LockNotHeldError, LockReleasedError,
  OwnershipLostError, type BackendFactory, type Blocker, type DistributedLock, type ErrorCode, type HoldfastEvent,
  type JsonValue, type LockManager, type LockOptions, type Logger, type ManagerOptions, type Ownership, type Resource,
} from '../../src/index.js'

declare const locks: LockManager
declare const lock: DistributedLock

// Making one.
expectTypeOf(connect).returns.toEqualTypeOf<Promise<LockManager>>()
expectTypeOf(createLocks).returns.toEqualTypeOf<LockManager>()
expectTypeOf(memoryBackend).returns.toEqualTypeOf<BackendFactory>()
void connect()
void connect('redis://localhost:6379')
const managerOptions = { prefix: 'shop', ttlMs: 10_000, waitMs: 0, retryMs: 50, owner: 'me', logger: console } satisfies ManagerOptions
void connect('redis://localhost:6379', { ...managerOptions, connectTimeoutMs: 1_000 })
void connect(memoryBackend())
void connect(undefined, { ttlMs: 5_000 })
createLocks(memoryBackend())
createLocks(memoryBackend({ now: () => 0 }), { prefix: 'shop' })
// @ts-expect-error a URL is for connect()
createLocks('memory:')
// @ts-expect-error there is no such option
void connect('memory:', { ttl: 5_000 })
// @ts-expect-error there is no such option
createLocks(memoryBackend(), { ttl: 5_000 })
// @ts-expect-error milliseconds are a number
createLocks(memoryBackend(), { ttlMs: '5s' })

// The real clients of each library fit, whatever they are set to.
expectTypeOf(redisBackend).returns.toEqualTypeOf<BackendFactory>()
expectTypeOf<Redis>().toExtend<RedisDriver>()
expectTypeOf<Cluster>().toExtend<RedisDriver>()
expectTypeOf<Valkey>().toExtend<RedisDriver>()
expectTypeOf<ValkeyCluster>().toExtend<RedisDriver>()
redisBackend(new Redis({ stringNumbers: true }), { waitReplicas: { count: 1, timeoutMs: 100 } })
redisBackend(createClient({ RESP: 2 }))
redisBackend(createClient({ commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } } }))
redisBackend(createCluster({ rootNodes: [], RESP: 2, useReplicas: true }))
redisBackend(createSentinel({ name: 'm', sentinelRootNodes: [] }))
void createClient().connect().then((client) => redisBackend(client))
// @ts-expect-error a pool gives each call another connection
redisBackend(createClientPool())
// @ts-expect-error a URL is for connect()
redisBackend('redis://localhost')
// @ts-expect-error there is no such option
redisBackend(new Redis(), { waitForReplicas: 1 })

// lock gives a lock, tryLock a lock or null.
expectTypeOf(locks.lock('k')).resolves.toEqualTypeOf<DistributedLock>()
expectTypeOf(locks.tryLock('k')).resolves.toEqualTypeOf<DistributedLock | null>()
expectTypeOf(locks.tryLock('k', { waitMs: 5 })).resolves.toEqualTypeOf<DistributedLock | null>()
// @ts-expect-error a key is a string
void locks.lock(42)
// @ts-expect-error a key is needed
void locks.lock()
void locks.tryLock('k').then((maybe) => {
  // @ts-expect-error it may be null
  void maybe.fence
})

// withLock returns what its function returns, awaited.
expectTypeOf(locks.withLock('k', () => 42)).toEqualTypeOf<Promise<number>>()
expectTypeOf(locks.withLock('k', async () => 'text')).toEqualTypeOf<Promise<string>>()
expectTypeOf(locks.withLock('k', { ttlMs: 500 }, ({ fence }) => fence)).toEqualTypeOf<Promise<bigint>>()
expectTypeOf(locks.withLock('k', () => {})).toEqualTypeOf<Promise<void>>()
expectTypeOf(locks.withLock('k', (held) => (held.fence > 5n ? held.key : Promise.resolve('text')))).toEqualTypeOf<Promise<string>>()
void locks.withLock('k', (held) => expectTypeOf(held).toEqualTypeOf<DistributedLock>())
// @ts-expect-error a function is needed
void locks.withLock('k', { ttlMs: 500 })
// @ts-expect-error the function comes last
void locks.withLock('k', () => {}, { ttlMs: 500 })

// The rest of a manager.
expectTypeOf(locks.unlock('k')).toEqualTypeOf<Promise<void>>()
expectTypeOf(locks.forceRelease('k')).toEqualTypeOf<Promise<boolean>>()
expectTypeOf(locks.forceRelease('k', { now: true })).toEqualTypeOf<Promise<boolean>>()
expectTypeOf(locks.adopt('…')).toEqualTypeOf<Promise<DistributedLock>>()
expectTypeOf(locks.close()).toEqualTypeOf<Promise<void>>()
expectTypeOf(locks.inspect()).toExtend<AsyncIterable<Resource>>()
expectTypeOf(locks.inspect('order:')).toExtend<AsyncIterable<Resource>>()
expectTypeOf(locks.owner).toEqualTypeOf<string>()
expectTypeOf(locks).toExtend<AsyncDisposable>()
// @ts-expect-error read-only
locks.owner = 'somebody else'

// A lock.
expectTypeOf(lock).toExtend<AsyncDisposable>()
expectTypeOf(lock.key).toEqualTypeOf<string>()
expectTypeOf(lock.token).toEqualTypeOf<string>()
expectTypeOf(lock.fence).toEqualTypeOf<bigint>()
expectTypeOf(lock.signal).toEqualTypeOf<AbortSignal>()
expectTypeOf(lock.remainingMs).toEqualTypeOf<number>()
expectTypeOf(lock.release()).toEqualTypeOf<Promise<boolean>>()
expectTypeOf(lock.extend(5_000)).toEqualTypeOf<Promise<void>>()
expectTypeOf(lock.assertHeld()).toEqualTypeOf<void>()
expectTypeOf(lock.transfer()).toEqualTypeOf<string>()
expectTypeOf(lock.toJSON()).toEqualTypeOf<{ readonly key: string; readonly fence: string }>()
// @ts-expect-error read-only
lock.fence = 1n
// @ts-expect-error read-only
lock.key = 'k'
// @ts-expect-error a fence is a bigint: a number loses its last digits
lock.fence satisfies number

async function disposable(): Promise<void> {
  await using manager = await connect('memory:')
  await using held = await manager.lock('k')
  await using maybe = await manager.tryLock('k')
  void [held, maybe]
}
void disposable

// Options of a lock.
const everyOption: Required<LockOptions> = {
  ttlMs: 1_000,
  waitMs: Infinity,
  retryMs: 50,
  autoRenew: true,
  renewEveryMs: 300,
  maxHoldMs: 60_000,
  reentrant: false,
  fairness: 'strict',
  signal: new AbortController().signal,
  type: 'report',
  metadata: { job: [1, 'two', null, { three: true }] },
}
void locks.lock('k', everyOption)
// @ts-expect-error there is no such option
void locks.lock('k', { ttl: 1_000 })
// @ts-expect-error 'bounded' or 'strict'
void locks.lock('k', { fairness: 'fair' })
// @ts-expect-error no such JSON
void locks.lock('k', { metadata: { at: new Date() } })
// @ts-expect-error no such JSON
void locks.lock('k', { metadata: { big: 1n } })
// @ts-expect-error no such JSON
void locks.lock('k', { metadata: () => {} })
// @ts-expect-error left out is not the same as undefined
void locks.lock('k', { ttlMs: undefined })
expectTypeOf<readonly [1, { a: 'b' }]>().toExtend<JsonValue>()
expectTypeOf<ManagerOptions>().toHaveProperty('prefix')

// key`…`.
expectTypeOf(key`order:${42}:${'a'}/${1n}:${true}`).toEqualTypeOf<string>()
// @ts-expect-error null is no part of a key
void key`order:${null}`
// @ts-expect-error undefined is no part of a key
void key`order:${undefined}`
// @ts-expect-error an object is no part of a key
void key`order:${{}}`
declare const maybeId: string | undefined
// @ts-expect-error it may be undefined
void key`order:${maybeId}`

// Errors.
expectTypeOf<OwnershipLostError>().toExtend<HoldfastError>()
expectTypeOf<LockedError>().toExtend<LockNotAcquiredError>()
expectTypeOf<LockReleasedError>().toExtend<LockNotHeldError>()
declare const error: HoldfastError
expectTypeOf(error.code).toEqualTypeOf<ErrorCode>()
expectTypeOf(error.status).toEqualTypeOf<number>()
declare const unknownError: unknown
if (unknownError instanceof LockNotAcquiredError) {
  expectTypeOf(unknownError.key).toEqualTypeOf<string>()
  expectTypeOf(unknownError.blocker).toEqualTypeOf<Blocker | undefined>()
}
if (unknownError instanceof BackendError) expectTypeOf(unknownError.transient).toEqualTypeOf<boolean>()
// @ts-expect-error there is no such code
'NO_SUCH_CODE' satisfies ErrorCode

// A resource.
declare const resource: Resource
expectTypeOf(resource.holders[0]!.fence).toEqualTypeOf<bigint | undefined>()
expectTypeOf(resource.holders[0]!.metadata).toEqualTypeOf<JsonValue | undefined>()

// Loggers and events.
console satisfies Logger
;({ info: (_fields: object, _message: string) => {}, warn: () => {}, error: () => {} }) satisfies Logger
// @ts-expect-error what is there to write to?
;({ info: () => {} }) satisfies Logger
declare const lost: HoldfastEvent<'lost'>
expectTypeOf(lost.fence).toEqualTypeOf<bigint>()
expectTypeOf(lost.owner).toEqualTypeOf<string>()
// @ts-expect-error no event carries a token
void lost.token

// Transactions.
expectTypeOf(locks.stm((tx) => tx.get('k'))).toEqualTypeOf<Promise<string>>()
expectTypeOf(locks.stm((tx) => tx.getBytes('k', 'l'))).toEqualTypeOf<Promise<Uint8Array | undefined>>()
expectTypeOf(locks.stm((tx) => tx.rev('k'))).toEqualTypeOf<Promise<bigint>>()
expectTypeOf(locks.stm((tx) => tx.put('k', Buffer.from('v')))).toEqualTypeOf<Promise<void>>()
void locks.stm(() => 1, { isolation: 'serializable', prefetch: ['k'], maxTries: 3, signal: AbortSignal.timeout(1), onCommit: ({ revision, tries }) => [revision + 1n, tries + 1] })
// @ts-expect-error there is no such level
void locks.stm(() => 1, { isolation: 'serialisable' })
// @ts-expect-error at least one key
void locks.stm((tx) => tx.get())
declare const ownership: Ownership
expectTypeOf(locks.stm((tx) => tx.requires(ownership))).toEqualTypeOf<Promise<void>>()
expectTypeOf<keyof Ownership>().toEqualTypeOf<'check'>()
// @ts-expect-error it is nothing that one could make
void locks.stm((tx) => tx.requires({}))
interface Account {
  readonly cents: number
}
const account = jsonKey<Account>('account')
expectTypeOf(locks.stm((tx) => account.get(tx))).toEqualTypeOf<Promise<Account | undefined>>()
// @ts-expect-error that is no account
void locks.stm((tx) => account.put(tx, { euros: 1 }))
