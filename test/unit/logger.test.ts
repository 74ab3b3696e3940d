import { inspect } from 'node:util'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld } from '../support/manual-world.js'

/** A logger that remembers what it was given; `shape` makes it look like pino, bunyan or the console. */
function recorder(shape: object = {}) {
  const lines: { level: string; args: any[] }[] = []
  const write = (level: string) => (...args: any[]) => void lines.push({ level, args })
  return { lines, logger: { info: write('info'), warn: write('warn'), error: write('error'), ...shape } }
}

const SHAPES = {
  'the console': { shape: { log: () => {} }, read: ([message, fields]: any[]) => ({ message, fields }) },
  pino: { shape: { bindings: () => ({}), child: () => {} }, read: ([fields, message]: any[]) => ({ message, fields }) },
  bunyan: { shape: { addStream: () => {} }, read: ([fields, message]: any[]) => ({ message, fields }) },
}

describe.each(Object.entries(SHAPES))('a logger in the shape of %s', (_, { shape, read }) => {
  it('gets the four lines, each with component, key and owner', async () => {
    const { manager, store, clock } = manualWorld()
    const { lines, logger } = recorder(shape)
    const locks = manager({ logger, owner: 'worker' })
    const lock = await locks.lock('order:42', { ttlMs: 9_000 })
    store.fail('renew', outage('connection reset'))
    await clock.advance(3_000)
    await lock.release()
    const lost = await locks.lock('order:43', { ttlMs: 1_000, autoRenew: false })
    await clock.advance(1_000)
    const common = { component: 'holdfast', owner: locks.owner }
    expect(lines.map(({ level, args }) => ({ level, ...read(args) }))).toEqual([
      { level: 'info', message: 'lock acquired', fields: { ...common, key: 'order:42', fence: String(lock.fence), waitedMs: 0 } },
      {
        level: 'warn',
        message: 'renew failed',
        fields: {
          ...common,
          key: 'order:42',
          fence: String(lock.fence),
          remainingMs: expect.closeTo(5_900, -3),
          reason: 'connection reset',
        },
      },
      { level: 'info', message: 'lock released', fields: { ...common, key: 'order:42', fence: String(lock.fence), heldMs: 3_000 } },
      { level: 'info', message: 'lock acquired', fields: { ...common, key: 'order:43', fence: String(lost.fence), waitedMs: 0 } },
      {
        level: 'error',
        message: 'ownership lost',
        fields: {
          ...common,
          key: 'order:43',
          fence: String(lost.fence),
          heldMs: 979,
          reason: expect.stringContaining('not renewed within its TTL'),
        },
      },
    ])
    for (const { args } of lines) expect(args).toHaveLength(2)
  })

  it('gets the warnings of the store', () => {
    const { manager, store } = manualWorld()
    const { lines, logger } = recorder(shape)
    const locks = manager({ logger })
    store.warn(locks.owner, 'locks may be evicted')
    expect(lines.map(({ level, args }) => ({ level, ...read(args) }))).toEqual([
      { level: 'warn', message: 'locks may be evicted', fields: { component: 'holdfast', owner: locks.owner } },
    ])
  })

  it('never gets a token', async () => {
    const { manager, store, clock } = manualWorld()
    const { lines, logger } = recorder(shape)
    const locks = manager({ logger })
    const lock = await locks.lock('a')
    const given = await locks.lock('b')
    store.fail('renew')
    await clock.advance(4_000)
    await lock.release()
    const adopted = await manager({ logger }).adopt(given.transfer())
    await adopted.release()
    expect(lines.length).toBeGreaterThan(4)
    const written = inspect(lines, { depth: 10 })
    for (const { token } of [lock, given, adopted]) expect(written).not.toContain(token.slice(0, 32))
  })
})

describe('without a logger', () => {
  it("warnings of the store go where Node's own go, until the manager is closed", async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const warnings: Error[] = []
    const hear = (warning: Error) => warnings.push(warning)
    process.on('warning', hear)
    onTestFinished(() => void process.off('warning', hear))
    store.warn(locks.owner, 'locks may be evicted')
    await settle()
    expect(warnings).toMatchObject([{ name: 'HoldfastWarning', message: 'locks may be evicted' }])
    await locks.close()
    store.warn(locks.owner, 'nobody listens')
    await settle()
    expect(warnings).toHaveLength(1)
  })

  it('nothing else is printed', async () => {
    const { manager, clock } = manualWorld()
    const printed: unknown[] = []
    for (const method of ['log', 'info', 'warn', 'error'] as const) {
      const spy = vi.spyOn(console, method).mockImplementation((...args: unknown[]) => void printed.push(args))
      onTestFinished(() => spy.mockRestore())
    }
    const locks = manager()
    await locks.withLock('a', () => {})
    await locks.lock('b', { autoRenew: false })
    await clock.advance(20_000)
    await locks.close()
    expect(printed).toEqual([])
  })
})

describe('a log', () => {
  it("is about its own manager's locks only", async () => {
    const { manager } = manualWorld()
    const { lines, logger } = recorder()
    manager({ logger })
    await manager().withLock('k', () => {})
    expect(lines).toEqual([])
  })

  it('ends when the manager is closed, with the locks that it released then', async () => {
    const { manager, store } = manualWorld()
    const { lines, logger } = recorder()
    const locks = manager({ logger })
    await locks.lock('k')
    await locks.close()
    expect(lines.map(({ args }) => args[0])).toEqual(['lock acquired', 'lock released'])
    store.warn(locks.owner, 'nobody listens')
    expect(lines).toHaveLength(2)
  })

  it('ends even if closing the store fails', async () => {
    const { manager, store } = manualWorld()
    const { lines, logger } = recorder()
    const locks = manager({ logger })
    store.fail('close', outage())
    await locks.close().catch(() => {})
    store.warn(locks.owner, 'nobody listens')
    expect(lines).toEqual([])
  })

  it('keeps the logger it was given: methods are called on it', async () => {
    const { manager } = manualWorld()
    class Log {
      readonly seen: string[] = []
      info(message: string) {
        this.seen.push(message)
      }
      warn() {}
      error() {}
    }
    const logger = new Log()
    await manager({ logger }).withLock('k', () => {})
    expect(logger.seen).toEqual(['lock acquired', 'lock released'])
  })
})
