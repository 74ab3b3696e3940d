/**
 * The black-hole test is able to see: two published libraries fail it, in the way that reading them predicts, and a lock
 * with a deadline of its own passes. A test that only ever passed would not be worth much.
 */
import { fork } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Redis } from 'ioredis'
import { Mutex } from 'redis-semaphore'
import Redlock from 'redlock'
import { describe, expect, test } from 'vitest'
import { blackHole, type Subject } from '../support/black-hole.js'
import { killAndWait } from '../support/processes.js'

const KEY = 'peers'
const POLL_MS = 2

function client(url: string): Redis {
  const redis = new Redis(url)
  // A connection that breaks is part of the plan.
  redis.on('error', () => {})
  return redis
}

async function withClient<T>(url: string, body: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = client(url)
  try {
    return await body(redis)
  } finally {
    redis.disconnect()
  }
}

/** Asks until it is granted. */
async function poll(signal: AbortSignal, attempt: () => Promise<boolean>): Promise<void> {
  while (!(await attempt())) {
    await sleep(POLL_MS)
    signal.throwIfAborted()
  }
}

/** SET NX with renewal, and a deadline counted from before each sending: as little as it takes to pass. */
const withDeadline: Subject = {
  async acquire(url, ttlMs) {
    const redis = client(url)
    let deadline = performance.now() + ttlMs * 0.95
    await redis.set(KEY, 'holder', 'PX', ttlMs, 'NX')
    const renew = async (): Promise<void> => {
      const sentAt = performance.now()
      const held = await redis.set(KEY, 'holder', 'PX', ttlMs, 'XX', 'GET')
      if (held === 'holder' && sentAt < deadline) deadline = sentAt + ttlMs * 0.95
    }
    const timer = setInterval(() => void renew().catch(() => {}), ttlMs / 3)
    return {
      lost: () => performance.now() >= deadline,
      dispose: () => {
        clearInterval(timer)
        redis.disconnect()
      },
    }
  },
  intrude: (url, ttlMs, signal) =>
    withClient(url, (redis) =>
      poll(signal, async () => (await redis.set(KEY, 'intruder', 'PX', ttlMs, 'NX')) === 'OK'),
    ),
}

const redlock: Subject = {
  async acquire(url, ttlMs) {
    const redis = client(url)
    // Quick retries, only so that it gives up soon when the test ends it.
    const locks = new Redlock([redis], { retryDelay: 10, retryJitter: 0 })
    let finish = (): void => {}
    let ended: Promise<void> = Promise.resolve()
    const signal = await new Promise<AbortSignal>((resolve, reject) => {
      const routine = (ownSignal: AbortSignal): Promise<void> => {
        resolve(ownSignal)
        return new Promise((done) => (finish = done))
      }
      ended = locks.using([KEY], ttlMs, routine).catch(reject)
    })
    return {
      lost: () => signal.aborted,
      async dispose() {
        finish()
        // Only this ends the extension that hangs, and `using` waits for it.
        redis.disconnect()
        await ended
      },
    }
  },
  intrude: (url, ttlMs, signal) =>
    withClient(url, async (redis) => {
      const locks = new Redlock([redis], { retryCount: 0 })
      await poll(signal, () =>
        locks.acquire([KEY], ttlMs).then(
          () => true,
          () => false,
        ),
      )
    }),
}

interface SemaphoreMessage {
  readonly isAcquired?: boolean
  readonly lockLost?: boolean
  readonly message?: string
}

/** In a process of its own, which reports. */
function redisSemaphore(rejections: string[]): Subject {
  return {
    async acquire(url, ttlMs) {
      const script = fileURLToPath(new URL('../support/fixtures/redis-semaphore.mjs', import.meta.url))
      const child = fork(script, [url, KEY, String(ttlMs)], { execArgv: [] })
      let lost = false
      await new Promise<void>((resolve, reject) => {
        child.on('message', ({ isAcquired, lockLost, message }: SemaphoreMessage) => {
          if (isAcquired === true) resolve()
          if (isAcquired === false || lockLost) lost = true
          if (message !== undefined) rejections.push(message)
        })
        child.on('exit', (code) => reject(new Error(`It exited with ${code} before it had the lock`)))
      })
      return { lost: () => lost, dispose: () => killAndWait(child) }
    },
    intrude: (url, ttlMs, signal) =>
      withClient(url, (redis) =>
        poll(signal, () =>
          new Mutex(redis, KEY, { lockTimeout: ttlMs, refreshInterval: 0, acquireAttemptsLimit: 1 }).tryAcquire(),
        ),
      ),
  }
}

describe('a lock with a deadline of its own', () => {
  test.each(['drop', 'hold'] as const)('knows before anybody can intrude (%s)', async (fault) => {
    const report = await blackHole(withDeadline, { fault })
    expect(report.lostWhenIntruded).toBe(true)
    expect(report.lostAtMs).toBeLessThan(report.intruderAtMs ?? 0)
  })

  test('keeps the lock while the network is sound', async () => {
    const report = await blackHole(withDeadline, { fault: 'none', patienceMs: 2_500 })
    expect(report).toEqual({ intruderAtMs: undefined, lostAtMs: undefined, lostWhenIntruded: false })
  })
})

describe('redlock 5.0.0-beta.2', () => {
  test('does not know that an intruder holds its lock', async () => {
    const report = await blackHole(redlock, { watchMs: 1_500 })
    expect(report.intruderAtMs).toBeGreaterThan(500)
    expect(report.intruderAtMs).toBeLessThan(2_000)
    expect(report.lostWhenIntruded).toBe(false)
    expect(report.lostAtMs).toBeUndefined()
  })

  test('keeps the lock while the network is sound', async () => {
    const report = await blackHole(redlock, { fault: 'none', patienceMs: 2_500 })
    expect(report).toEqual({ intruderAtMs: undefined, lostAtMs: undefined, lostWhenIntruded: false })
  })
})

describe('redis-semaphore 5.8', () => {
  test('does not know either, and its refresh is an unhandled rejection', async () => {
    const rejections: string[] = []
    const report = await blackHole(redisSemaphore(rejections), { watchMs: 2_000 })
    expect(report.intruderAtMs).toBeGreaterThan(500)
    expect(report.intruderAtMs).toBeLessThan(2_000)
    expect(report.lostWhenIntruded).toBe(false)
    expect(report.lostAtMs).toBeUndefined()
    expect(new Set(rejections)).toEqual(new Set(['Command timed out']))
  })

  test('keeps the lock while the network is sound', async () => {
    const rejections: string[] = []
    const report = await blackHole(redisSemaphore(rejections), { fault: 'none', patienceMs: 2_500 })
    expect(report).toEqual({ intruderAtMs: undefined, lostAtMs: undefined, lostWhenIntruded: false })
    expect(rejections).toEqual([])
  })
})
