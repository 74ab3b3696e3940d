import { createServer } from 'node:net'

// Below the range from which the kernel takes the ports of clients.
const PORTS = { first: 20_000, count: 12_000 }

/** One that is free now: by the time a server takes it, another may have been quicker. */
export async function freePort() {
  for (;;) {
    const port = PORTS.first + Math.floor(Math.random() * PORTS.count)
    const probe = createServer()
    const free = await new Promise((resolve) => {
      probe.once('error', () => resolve(false))
      probe.listen({ port, host: '127.0.0.1', exclusive: true }, () => probe.close(() => resolve(true)))
    })
    if (free) return port
  }
}
