/**
 * A lock of holdfast's and one of `etcdctl lock` (or of Go's concurrency.Mutex) exclude each other, and are served in order.
 * Run with HOLDFAST_URL=etcd://… and etcdctl in the PATH.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'holdfast'

const url = process.env.HOLDFAST_URL ?? ''
if (!url.startsWith('etcd://') || url.includes('@')) {
  console.error('Say where an etcd without users is: HOLDFAST_URL=etcd://127.0.0.1:2379 node examples/beside-etcdctl.mjs')
  process.exit(1)
}
const endpoints = url.slice('etcd://'.length)
const locks = await connect(url, { prefix: 'shop' })

const lock = await locks.lock('stock')
console.log('holdfast: has it')

const script = 'echo "etcdctl: has it"; sleep 0.3; echo "etcdctl: done"'
const args = [`--endpoints=${endpoints}`, 'lock', 'shop/stock', '--', 'sh', '-c', script]
// etcdctl refuses endpoints that are in its environment as well.
const { ETCDCTL_ENDPOINTS: _, ...env } = process.env
const etcdctl = spawn('etcdctl', args, { env: { ...env, ETCDCTL_API: '3' }, stdio: ['ignore', 'inherit', 'inherit'] })
const ended = once(etcdctl, 'exit')
while (!(await isWaitedFor('stock'))) await new Promise((resolve) => setTimeout(resolve, 20))
console.log('etcdctl: waits')

console.log('holdfast: done')
await lock.release()

await locks.withLock('stock', async ({ fence }) => console.log(`holdfast: has it again, with a higher fence: ${fence > lock.fence}`))
await ended
await locks.close()

async function isWaitedFor(wanted) {
  for await (const { key, waiters } of locks.inspect()) if (key === wanted && waiters.length > 0) return true
  return false
}
