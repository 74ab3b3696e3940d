/** What a lookout makes of a line that it knows only as it was a while ago. */
import { describe, expect, it } from 'vitest'
import type { EtcdClient } from '../../src/backends/etcd/client/client.js'
import type { KeyValue, WatchEvent } from '../../src/backends/etcd/client/messages.js'
import type { WatchListener } from '../../src/backends/etcd/client/watch.js'
import { Directory } from '../../src/backends/etcd/directories.js'
import { Lookouts } from '../../src/backends/etcd/lookouts.js'
import { OwnClaim } from '../../src/backends/etcd/own-claim.js'
import { systemClock } from '../../src/core/clock.js'

const DIRECTORY = 'locks/key/'
const directory = new Directory(DIRECTORY)

function keyValue(name: string, createRevision: bigint): KeyValue {
  return { key: Buffer.from(DIRECTORY + name), value: Buffer.alloc(0), createRevision, modRevision: createRevision, version: 1n, lease: 7n }
}

const put = (name: string, revision: bigint): WatchEvent => ({ ...keyValue(name, revision), type: 'put', prevKv: undefined })
const removed = (name: string, revision: bigint): WatchEvent => ({ ...put(name, revision), type: 'delete' })

function waiting(name: string, createRevision: bigint): OwnClaim {
  const own = Object.assign(Object.create(OwnClaim.prototype) as OwnClaim, { directory, key: DIRECTORY + name })
  own.createRevision = createRevision
  return own
}

describe('a claim whose key another of this process had before', () => {
  it('is granted when it is its own turn, and not for what was the turn of the other', async () => {
    let watch: WatchListener | undefined
    const client = {
      watch: (_: unknown, listener: WatchListener) => {
        watch = listener
        return { close: () => {} }
      },
      range: async () => ({ kind: 'range', revision: 5n, kvs: [keyValue('7-1', 3n), keyValue('8-1', 4n)], more: false, count: 2 }),
    } as unknown as EtcdClient
    const heard: string[] = []
    const listener = { granted: () => void heard.push('granted'), vanished: () => void heard.push('vanished') }
    const lookouts = new Lookouts(client, systemClock(), listener, { tidy: () => {} })
    const [early, late] = [waiting('7-1', 9n), waiting('7-1', 3n)]
    lookouts.join(early)
    watch!.onCreated(5n)
    await new Promise((resolve) => setImmediate(resolve))
    watch!.onEvents([put('9-1', 6n)], 6n)
    expect(heard).toEqual([])
    // The other one leaves for good, and takes nobody with it.
    lookouts.leave(late)
    watch!.onEvents([removed('7-1', 8n)], 8n)
    watch!.onEvents([put('7-1', 9n)], 9n)
    expect(heard).toEqual([])
    watch!.onEvents([removed('8-1', 10n)], 10n)
    watch!.onEvents([removed('9-1', 11n)], 11n)
    expect(heard).toEqual(['granted'])
    lookouts.close()
  })
})
