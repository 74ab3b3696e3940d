/** URLs of etcd, and what is wrong with some. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { createEtcdClient } from '../../src/backends/etcd/client/client.js'
import { parseEtcdUrl } from '../../src/backends/etcd/url.js'
import { ConfigurationError } from '../../src/index.js'
import { makeFolder, removeAtEnd } from '../support/processes.js'

const folder = makeFolder('etcd-url')
removeAtEnd(folder)
const file = (name: string) => {
  writeFileSync(join(folder, name), `content of ${name}`)
  return encodeURIComponent(join(folder, name))
}

describe('etcd://', () => {
  it.each([
    ['etcd://localhost', { endpoints: ['http://localhost:2379'] }],
    ['ETCD://localhost/', { endpoints: ['http://localhost:2379'] }],
    ['etcd://a:1,b,[::1]:3', { endpoints: ['http://a:1', 'http://b:2379', 'http://[::1]:3'] }],
    ['etcd://u:p@a,b', { endpoints: ['http://a:2379', 'http://b:2379'], username: 'u', password: 'p' }],
    ['etcd://u@a', { endpoints: ['http://a:2379'], username: 'u', password: '' }],
    ['etcd://a%40b:p%3Aa%2Fs%25s@a', { endpoints: ['http://a:2379'], username: 'a@b', password: 'p:a/s%s' }],
    ['etcds://a:1,b:2', { endpoints: ['https://a:1', 'https://b:2'] }],
    ['etcds://a?servername=etcd.example', { endpoints: ['https://a:2379'], tls: { servername: 'etcd.example' } }],
  ])('%s', (url, options) => {
    expect(parseEtcdUrl(url)).toEqual(options)
  })

  it('reads files', () => {
    const { tls } = parseEtcdUrl(`etcds://a?ca=${file('ca')}&cert=${file('cert')}&key=${file('key')}`)
    expect(tls).toEqual({ ca: 'content of ca', cert: 'content of cert', key: 'content of key' })
  })
})

describe('endpoints', () => {
  const wrong = [[], ['localhost:2379'], ['etcd://a'], ['http://user:canary@a'], ['http://a', 'canary']]
  it.each(wrong.map((endpoints) => [endpoints]))('%j are refused', (endpoints) => {
    expect(() => createEtcdClient({ endpoints })).toThrow(ConfigurationError)
    expect(() => createEtcdClient({ endpoints })).not.toThrow(/canary/)
  })
})

describe('what is wrong', () => {
  it.each([
    ['http://user:canary@a', 'no etcd: URL'],
    ['etcd://user:canary@', 'host and port'],
    ['etcd://user:canary@a,,b', 'host and port'],
    ['etcd://user:canary@a:0', 'host and port'],
    ['etcd://user:canary@a:99999', 'host and port'],
    ['etcd://user:canary@a/path', 'no etcd: URL'],
    ['etcd://user:canary@a#hash', 'no etcd: URL'],
    ['etcd://:canary@a', 'of a user'],
    ['etcd://user:canary%@a', 'encodes nothing'],
    ['etcd://user:canary@a?servername=x', 'etcds:'],
    ['etcds://user:canary@a?password=canary', 'parameters'],
    ['etcds://user:canary@a?ca=/nowhere/canary', 'ENOENT'],
    [`etcds://user:canary@a?cert=${file('only')}`, 'belong together'],
  ])('%s', (url, why) => {
    const refused = (() => {
      try {
        return parseEtcdUrl(url)
      } catch (error) {
        return error
      }
    })()
    expect(refused).toBeInstanceOf(ConfigurationError)
    expect((refused as Error).message).toContain(why)
    expect(inspect(refused).split('\n    at ')[0]).not.toContain('canary')
  })
})
