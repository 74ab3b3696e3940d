/** What is exported, by name: an addition or a loss is a decision, not an accident. */
import { describe, expect, it } from 'vitest'
import * as memory from '../../src/backends/memory/index.js'
import * as mysql from '../../src/backends/sql/mysql/index.js'
import * as sqlite from '../../src/backends/sql/sqlite/index.js'
import * as holdfast from '../../src/index.js'
import { manualWorld } from '../support/manual-world.js'

describe('holdfast', () => {
  it('exports connect, createLocks, Mutex, Election, key, jsonKey and the errors', () => {
    expect(Object.keys(holdfast).sort()).toEqual([
      'BackendError',
      'ConfigurationError',
      'ConflictError',
      'ConnectorError',
      'Election',
      'HoldfastError',
      'InvalidKeyError',
      'InvalidTtlError',
      'LockAlreadyHeldError',
      'LockNotAcquiredError',
      'LockNotHeldError',
      'LockReleasedError',
      'LockedError',
      'ManagerClosedError',
      'Mutex',
      'NoLeaderError',
      'NotLeaderError',
      'OwnershipLostError',
      'SessionExpiredError',
      'connect',
      'createLocks',
      'jsonKey',
      'key',
    ])
  })

  it('/memory exports memoryBackend', () => {
    expect(Object.keys(memory)).toEqual(['memoryBackend'])
  })

  it('/sqlite exports sqliteBackend', () => {
    expect(Object.keys(sqlite)).toEqual(['sqliteBackend'])
  })

  it('/mysql exports mysqlBackend, and what its tables are made by', () => {
    expect(Object.keys(mysql).sort()).toEqual(['mysqlBackend', 'mysqlGrants', 'mysqlMigration'])
  })
})

/** Everything on an object and its class, but what every object has. */
function members(it: object): string[] {
  const names = new Set<string>()
  for (let level = it; level !== Object.prototype; level = Object.getPrototypeOf(level) as object) {
    for (const name of Reflect.ownKeys(level)) names.add(name === Symbol.asyncDispose ? '[Symbol.asyncDispose]' : String(name))
  }
  names.delete('constructor')
  return [...names].sort()
}

describe('a lock manager', () => {
  it('has these members', () => {
    expect(members(manualWorld().manager())).toEqual([
      '[Symbol.asyncDispose]',
      'adopt',
      'close',
      'election',
      'forceRelease',
      'inspect',
      'lock',
      'owner',
      // Internal, for connect(); so is `trouble`.
      'ready',
      'session',
      'stm',
      'trouble',
      'tryLock',
      'unlock',
      'withLock',
    ])
  })
})

describe('a lock', () => {
  it('has these members, and its state is nobody else’s', async () => {
    const lock = await manualWorld().manager().lock('k')
    expect(members(lock)).toEqual([
      '[Symbol.asyncDispose]',
      'assertHeld',
      'extend',
      'fence',
      'key',
      'release',
      'remainingMs',
      'signal',
      'toJSON',
      'token',
      'transfer',
    ])
    expect(Object.keys(lock)).toEqual([])
    for (const name of ['key', 'token', 'fence', 'signal', 'remainingMs'] as const) {
      expect(() => Object.assign(lock, { [name]: 'changed' })).toThrow(TypeError)
    }
  })

  it('can be taken apart in a callback: what it says are values', async () => {
    const { manager } = manualWorld()
    await manager().withLock('k', ({ key, token, fence, signal, remainingMs }) => {
      expect([typeof key, typeof token, typeof fence, typeof remainingMs]).toEqual(['string', 'string', 'bigint', 'number'])
      expect(signal).toBeInstanceOf(AbortSignal)
    })
  })
})
