/** Who holds what, and who waits for it: all claims with some prefix, page by page, as of one revision. */
import { ALL_SLOTS, type ResourceState } from '../../core/backend.js'
import type { EtcdClient } from './client/client.js'
import type { RangeResponse } from './client/messages.js'
import { fromBytes, type Keys } from './keys.js'
import { describe, Line, standingOf, type Standing } from './line.js'

const PAGE = 500

export async function* inspect(client: EtcdClient, keys: Keys, beginning: string): AsyncIterable<ResourceState> {
  const { key: from, rangeEnd } = keys.rangeOf(beginning)
  let key: Buffer = from
  let revision: bigint | undefined
  let resource: string | undefined
  let standings: Standing[] = []
  for (let more = true; more; ) {
    const page: RangeResponse = await client.range({ key, rangeEnd, limit: PAGE, ...(revision !== undefined && { revision }) })
    revision ??= page.revision
    for (const kv of page.kvs) {
      const its = keys.resourceOf(fromBytes(kv.key))
      // It may lie between those of a resource.
      if (its === undefined) continue
      if (its !== resource) {
        if (resource !== undefined) yield stateOf(resource, standings)
        resource = its
        standings = []
      }
      standings.push(standingOf(kv))
    }
    more = page.more
    if (more) key = Buffer.concat([page.kvs.at(-1)!.key, Buffer.alloc(1)])
  }
  if (resource !== undefined) yield stateOf(resource, standings)
}

function stateOf(key: string, standings: readonly Standing[]): ResourceState {
  const line = new Line(standings)
  const takeOf = ({ value }: Standing) => value?.take ?? ALL_SLOTS
  return {
    key,
    limit: line.standings[0]!.value?.limit ?? 1,
    holders: line.standings.slice(0, line.holders).map((one) => ({ ...describe(one), take: takeOf(one) })),
    waiters: line.standings.slice(line.holders).map((one) => ({ owner: describe(one).owner!, take: takeOf(one) })),
  }
}
