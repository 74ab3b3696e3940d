/** How often each method of an etcd was called, as the server counts. */
import type { EtcdServer } from './etcd-server.js'

async function calls({ endpoint }: EtcdServer): Promise<Map<string, number>> {
  const text = await (await fetch(`${endpoint}/metrics`)).text()
  const counts = [...text.matchAll(/^grpc_server_started_total\{grpc_method="(\w+)".*\} (\d+)$/gm)]
  return new Map(counts.map(([, method, count]) => [method!, Number(count)]))
}

export async function callsDuring(server: EtcdServer, work: () => Promise<unknown>): Promise<Record<string, number>> {
  const before = await calls(server)
  await work()
  const after = await calls(server)
  return Object.fromEntries([...after].map(([method, count]) => [method, count - (before.get(method) ?? 0)] as const).filter(([, count]) => count > 0))
}
