/**
 * A lock that does most things well: it knows its deadline, renews, has a fence, and releases in one step. The controls each do one
 * thing otherwise.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { parseRedisUrl } from '../../../dist/backends/redis/url.js'

const RENEW = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`
const RELEASE = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
const MARGIN = 0.9

export function open(url) {
  const { kind, hosts, masterName, username, password } = parseRedisUrl(url)
  const where = kind === 'sentinel' ? { sentinels: [...hosts], name: masterName, failoverDetector: true } : hosts[0]
  const redis = new Redis({ ...where, username, password, maxRetriesPerRequest: null })
  redis.on('error', () => {})
  return redis
}

export const releaseInOneStep = async (redis, name, token) => (await redis.eval(RELEASE, 1, name, token)) === 1

/** `isSafe`: whether a grant counts. */
export function simpleLocks(redis, prefix, { release = releaseInOneStep, isSafe = async () => true, close = () => {} }) {
  async function lock(key, { ttlMs }) {
    const name = `${prefix}:lock:${key}`
    const token = randomUUID()
    let sentAt
    for (;;) {
      sentAt = performance.now()
      if ((await redis.set(name, token, 'PX', ttlMs, 'NX')) !== null) {
        if (await isSafe()) break
        await releaseInOneStep(redis, name, token)
      }
      await sleep(3)
    }
    const fence = process.hrtime.bigint()
    let deadline = sentAt + ttlMs * MARGIN
    const renew = async () => {
      const at = performance.now()
      if ((await redis.eval(RENEW, 1, name, token, ttlMs).catch(() => 0)) === 1) deadline = at + ttlMs * MARGIN
    }
    const timer = setInterval(() => void renew(), ttlMs / 3)
    return {
      key,
      fence,
      signal: new AbortController().signal,
      get remainingMs() {
        return Math.max(0, deadline - performance.now())
      },
      assertHeld() {
        if (performance.now() >= deadline) throw new Error('its time is over')
      },
      release() {
        clearInterval(timer)
        return release(redis, name, token)
      },
    }
  }

  return {
    lock,
    close() {
      close()
      redis.disconnect()
    },
  }
}
