import { createServer } from 'node:net'

// Below the kernel's ephemeral range (32768 and up): a client that keeps connecting to a closed port inside that range
// can be given the very same port as its source, and then it is connected to itself.
const FIRST = 20_000
const COUNT = 12_000

export function anyPort(): number {
  return FIRST + Math.floor(Math.random() * COUNT)
}

/** A port that was free a moment ago. Whoever binds it still has to be ready for a collision. */
export async function freePort(host = '127.0.0.1'): Promise<number> {
  for (let attempt = 0; attempt < 100; attempt++) {
    const port = anyPort()
    if (await isFree(port, host)) return port
  }
  throw new Error(`No free port found on ${host} from ${FIRST} to ${FIRST + COUNT - 1}`)
}

function isFree(port: number, host: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false)
      else reject(error)
    })
    server.listen({ port, host, exclusive: true }, () => server.close(() => resolve(true)))
  })
}
