/** The clients that the contenders share, connected. They end with their process. */
export const CLIENTS = {
  ioredis: async (url, options) => ioredis(await import('ioredis'), url, options),
  // For the one who is not there yet with 6.
  'ioredis-5': async (url, options) => ioredis(await import('ioredis-5'), url, options),
  'node-redis': async (url) => {
    const { createClient } = await import('redis')
    return createClient({ url }).connect()
  }
}

async function ioredis({ Redis }, url, options) {
  const client = new Redis(url, { lazyConnect: true, ...options })
  await client.connect()
  return client
}
