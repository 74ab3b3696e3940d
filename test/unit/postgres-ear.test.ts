/** A connection that listens, and ends at a bad moment, or hears nothing any more. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { PostgresClient } from '../../src/backends/sql/postgres/client.js'
import { PostgresDatabase } from '../../src/backends/sql/postgres/database.js'
import { Ear } from '../../src/backends/sql/postgres/ear.js'
import { PostgresSchema } from '../../src/backends/sql/postgres/schema.js'

it('one that is cut while its process is looked up does not count as one that listens', async () => {
  let cut = () => {}
  const client: PostgresClient = {
    // The server has not noticed yet: its process is still there.
    query: async (_text, values) => {
      cut()
      return `${values.at(-1)}1`
    },
    script: async () => {},
    listen: async (_channel, _onNews, onEnd) => {
      cut = onEnd
      return { pid: 1, close: async () => {} }
    },
    close: async () => {},
  }
  const database = new PostgresDatabase(client, new PostgresSchema(), { migrate: true })
  await expect(database.listen!('me', { onNews: () => {}, onEnd: () => {} })).rejects.toThrow('lost at once')
})

describe('one that asks itself every 5 s whether it hears', () => {
  beforeEach(() => void vi.useFakeTimers())
  afterEach(() => void vi.useRealTimers())

  async function open(probe: (text: string, hear: (news: string) => void) => Promise<void>) {
    let hear: (news: string) => void = () => {}
    const told: string[] = []
    const onEnd = vi.fn()
    const close = vi.fn(async () => {})
    const ear = await Ear.open({
      listener: { onNews: (news) => told.push(news), onEnd },
      listen: async (onNews) => {
        hear = onNews
        return { pid: 1, close }
      },
      probe: (text) => probe(text, hear),
    })
    return { ear, onEnd, close, told }
  }

  it('goes on for as long as it does, and tells nobody of that', async () => {
    const { ear, onEnd, told } = await open(async (text, hear) => void setTimeout(hear, 1_900, text))
    await vi.advanceTimersByTimeAsync(60_000)
    expect(onEnd).not.toHaveBeenCalled()
    expect(told).toEqual([])
    await ear.close()
  })

  it('is found out within 2 s more if it does not, and closed', async () => {
    const { onEnd, close } = await open(async () => {})
    await vi.advanceTimersByTimeAsync(6_900)
    expect(onEnd).not.toHaveBeenCalled()
    await vi.advanceTimersByTimeAsync(200)
    expect(onEnd).toHaveBeenCalledOnce()
    expect(close).toHaveBeenCalledOnce()
    expect(vi.getTimerCount()).toBe(0)
  })

  it('is not given up because it could not be asked', async () => {
    let isUp = false
    const { onEnd } = await open(async () => {
      if (!isUp) throw new Error('nobody there')
    })
    await vi.advanceTimersByTimeAsync(30_000)
    expect(onEnd).not.toHaveBeenCalled()
    isUp = true
    await vi.advanceTimersByTimeAsync(7_100)
    expect(onEnd).toHaveBeenCalledOnce()
  })
})
