/** A server that does not want us. */
import { createServer, type AddressInfo } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { createEtcdClient } from '../../src/backends/etcd/client/client.js'

const SETTINGS = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0])
const GO_AWAY = Buffer.from([0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])

it('is not besieged if it says hello and goodbye in one breath', async () => {
  let connections = 0
  const server = createServer((socket) => {
    connections++
    socket.on('error', () => {})
    socket.write(Buffer.concat([SETTINGS, GO_AWAY]))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  const client = createEtcdClient({ endpoints: [`http://127.0.0.1:${(server.address() as AddressInfo).port}`], callTimeoutMs: 1_000 })
  onTestFinished(() => client.close())
  await expect(client.range({ key: Buffer.from('a') })).rejects.toThrow('cannot be reached')
  expect(connections).toBeLessThan(20)
})
