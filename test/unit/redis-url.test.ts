/** URLs of Redis, and what is wrong with some. */
import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { parseRedisUrl } from '../../src/backends/redis/url.js'
import { ConfigurationError } from '../../src/index.js'

const plain = {
  kind: 'single',
  tls: false,
  username: undefined,
  password: undefined,
  database: 0,
  masterName: '',
  sentinelUsername: undefined,
  sentinelPassword: undefined,
}
const local = { host: 'localhost', port: 6379 }

describe('redis://', () => {
  it.each([
    ['redis://localhost', { hosts: [local] }],
    ['redis://localhost/', { hosts: [local] }],
    ['REDIS://localhost:6380/3', { hosts: [{ host: 'localhost', port: 6380 }], database: 3 }],
    ['rediss://cache.example.com', { hosts: [{ host: 'cache.example.com', port: 6379 }], tls: true }],
    ['redis://[::1]:7000', { hosts: [{ host: '::1', port: 7000 }] }],
    ['redis://my_host', { hosts: [{ host: 'my_host', port: 6379 }] }],
    ['redis://user:pass@localhost', { hosts: [local], username: 'user', password: 'pass' }],
    ['redis://:pass@localhost', { hosts: [local], password: 'pass' }],
    ['redis://user@localhost', { hosts: [local], username: 'user' }],
    ['redis://a%40b:p%3Aa%2Fs%25s@localhost', { hosts: [local], username: 'a@b', password: 'p:a/s%s' }],
    ['redis://user:with:colons@and@localhost', { hosts: [local], username: 'user', password: 'with:colons@and' }],
  ])('%s', (url, parts) => {
    expect(parseRedisUrl(url)).toEqual({ ...plain, ...parts })
  })
})

describe('redis+sentinel://', () => {
  const hosts = [{ host: 'a', port: 26379 }, { host: 'b', port: 5000 }, { host: '::1', port: 26379 }]
  it.each([
    ['redis+sentinel://a,b:5000,[::1]/mymaster', { hosts, masterName: 'mymaster' }],
    ['rediss+sentinel://u:p@a,b:5000,[::1]/mymaster/2', { hosts, masterName: 'mymaster', username: 'u', password: 'p', database: 2, tls: true }],
    ['redis+sentinel://a,b:5000,[::1]/my%2Fmaster/', { hosts, masterName: 'my/master' }],
    [
      'redis+sentinel://:p@a,b:5000,[::1]/m?sentinelPassword=s%26p&sentinelUsername=su',
      { hosts, masterName: 'm', password: 'p', sentinelUsername: 'su', sentinelPassword: 's&p' },
    ],
  ])('%s', (url, parts) => {
    expect(parseRedisUrl(url)).toEqual({ ...plain, kind: 'sentinel', ...parts })
  })
})

describe('redis+cluster://', () => {
  it.each([
    ['redis+cluster://a:7000,b:7001', {}],
    ['redis+cluster://a:7000,b:7001/', {}],
    ['rediss+cluster://u:p@a:7000,b:7001', { tls: true, username: 'u', password: 'p' }],
  ])('%s', (url, parts) => {
    const hosts = [{ host: 'a', port: 7000 }, { host: 'b', port: 7001 }]
    expect(parseRedisUrl(url)).toEqual({ ...plain, kind: 'cluster', hosts, ...parts })
  })
})

it.each([
  'redis:canary', 'redis:/canary', 'redis://', 'redis://:canary@', 'redis://canary:0', 'redis://canary:65536', 'redis://canary:x',
  'redis://u:canary/x@host', 'redis://host/canary', 'redis://host/1/canary', 'redis://host?canary=1', 'redis://host#canary',
  'redis://host?sentinelPassword=canary', 'redis://u:canary%@host', 'redis://a,canary', 'redis://can ary', 'redis://[canary]',
  'redis+sentinel://canary', 'redis+sentinel://canary/', 'redis+sentinel://a/m/canary', 'redis+sentinel://a,/canary', 'redis+sentinel:///canary',
  'redis+sentinel://a/m?password=canary', 'redis+sentinel://a/m%?sentinelPassword=canary',
  'redis+cluster://canary/0', 'redis+cluster://a,,canary', 'redis+cluster://a?canary',
])('%s is refused, and nothing of it is told but its scheme', (url) => {
  let error: unknown
  try {
    parseRedisUrl(url)
  } catch (thrown) {
    error = thrown
  }
  expect(error).toBeInstanceOf(ConfigurationError)
  expect(inspect(error, { depth: 10, showHidden: true }).split('\n    at ')[0]).not.toContain('canary')
  expect((error as Error).message).toContain('redis')
})

it('takes no time for what is long and wrong', () => {
  const startedAt = performance.now()
  for (const part of ['a', ',', ':', '@', '/', '%', '[', 'a:1,']) {
    try {
      parseRedisUrl(`redis+cluster://${part.repeat(100_000)}`)
    } catch {
      // As it should.
    }
  }
  expect(performance.now() - startedAt).toBeLessThan(2_000)
})
