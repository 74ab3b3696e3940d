/** A transfer by the client alone: WATCH, GET, and MULTI with two SETs, again if somebody was faster. A connection for each in flight. */
import { CLIENTS } from '../lib/clients.mjs'
import { accountsOf } from '../lib/doing.mjs'

export async function open(url, { prefix, client: clientOptions }) {
  const idle = []
  let applied = 0
  let committed = 0

  async function transfer(client, from, to) {
    for (;;) {
      applied++
      await client.watch(from, to)
      const [a, b] = await client.mget(from, to)
      if (await client.multi().set(from, Number(a) - 1).set(to, Number(b) + 1).exec()) return void committed++
    }
  }

  return {
    async acquire(key) {
      const client = idle.pop() ?? (await CLIENTS.ioredis(url, clientOptions))
      await transfer(client, ...accountsOf(prefix, key))
      idle.push(client)
      return key
    },
    release: () => undefined,
    tries: () => ({ applied, committed })
  }
}
