/** What postgres.js does by itself, and what we make of it. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { PostgresJsClient, type PostgresJs } from '../../src/backends/sql/postgres/clients/postgres-js.js'

const ANSWER_MS = 5_000

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

it.each([
  ['was not sent yet does nothing when it is', null, { strings: [''], args: [] }],
  ['was sent is left alone', { pid: 1 }, { strings: ['SELECT 1'], args: ['a'] }],
])('a statement that is not answered fails in time; one that %s', async (_, state, left) => {
  const statement = Object.assign(new Promise(() => {}), { state, strings: ['SELECT 1'], args: ['a'] })
  const sql: PostgresJs = Object.assign(() => {}, { unsafe: () => statement, listen: () => new Promise<never>(() => {}) })
  const failed = expect(new PostgresJsClient(sql).query('SELECT 1', [])).rejects.toThrow('No answer within')
  await vi.advanceTimersByTimeAsync(ANSWER_MS + 1)
  await failed
  expect(statement).toMatchObject(left)
})

it('after a sleep of the process, an answer that was not read yet is not too late', async () => {
  const unread = new Promise((resolve) => setTimeout(() => setImmediate(resolve, [{ result: 'a' }]), ANSWER_MS))
  const sql: PostgresJs = Object.assign(() => {}, { unsafe: () => unread, listen: () => new Promise<never>(() => {}) })
  const answered = expect(new PostgresJsClient(sql).query('SELECT 1', [])).resolves.toBe('a')
  await vi.advanceTimersByTimeAsync(ANSWER_MS + 1)
  await answered
})

/** As it keeps listeners: for each connection it listens again for all of them. */
class Listeners {
  readonly state = { pid: 0 }
  readonly all: { onNews: (news: string) => void; onListen?: (() => void) | undefined }[] = []
  readonly unlisten = vi.fn(async () => {})
  isUp = true
  /** Whether somebody who notifies is heard. */
  tells = false
  /** What it is asked, in full. */
  readonly sql: PostgresJs = Object.assign(() => {}, {
    unsafe: async () => {
      if (this.tells) this.notify('')
      return []
    },
    listen: async (_channel: string, onNews: (news: string) => void, onListen?: () => void) => {
      this.all.push({ onNews, onListen })
      if (!this.isUp) throw new Error('refused')
      this.state.pid ||= 1
      onListen?.()
      return { state: this.state, unlisten: this.unlisten }
    },
  })

  reconnect(): void {
    this.isUp = true
    this.state.pid++
    for (const { onListen } of this.all) onListen?.()
  }

  notify(news: string): void {
    for (const { onNews } of this.all) onNews(news)
  }
}

it('each connection that is made anew is told as an end, and the same listener is taken over', async () => {
  const listeners = new Listeners()
  const client = new PostgresJsClient(listeners.sql)
  const onNews = vi.fn()
  for (let pid = 1; pid <= 20; pid++) {
    const onEnd = vi.fn()
    const channel = await client.listen('a', onNews, onEnd)
    expect(channel.pid).toBe(pid)
    listeners.notify(`news ${pid}`)
    listeners.reconnect()
    expect(onEnd).toHaveBeenCalledTimes(1)
    await channel.close()
  }
  expect(onNews.mock.calls.map(([news]) => news as string)).toEqual(Array.from({ length: 20 }, (_, i) => `news ${i + 1}`))
  expect(listeners.all).toHaveLength(1)
})

it('while it cannot connect, no listeners pile up, and it is on as soon as it can', async () => {
  const listeners = new Listeners()
  listeners.isUp = false
  const client = new PostgresJsClient(listeners.sql)
  for (let i = 0; i < 20; i++) {
    const failed = expect(client.listen('a', () => {}, () => {})).rejects.toThrow('No answer within')
    await vi.advanceTimersByTimeAsync(ANSWER_MS + 1)
    await failed
  }
  expect(listeners.all).toHaveLength(1)
  const listening = client.listen('a', () => {}, () => {})
  listeners.reconnect()
  expect((await listening).pid).toBe(1)
  // It was listened to once more, for its number.
  expect(listeners.all).toHaveLength(2)
})

/** It has connected anew, so that it is never forgotten; and nothing was heard of it for so long that its listener has left. */
async function givenUp() {
  const listeners = new Listeners()
  const client = new PostgresJsClient(listeners.sql)
  const first = await client.listen('a', () => {}, () => {})
  listeners.reconnect()
  await first.close()
  await (await client.listen('a', () => {}, () => {})).close()
  const onNews = vi.fn()
  return { listeners, onNews, listen: () => client.listen('a', onNews, () => {}) }
}

it('one that was given up and is heard of after all is on', async () => {
  const { listeners, onNews, listen } = await givenUp()
  const again = listen()
  listeners.notify('is anybody there?')
  await again
  listeners.notify('news')
  expect(onNews.mock.calls).toEqual([['news']])
})

it('one that was given up though it is sound is on again at once: it is asked', async () => {
  const { listeners, onNews, listen } = await givenUp()
  listeners.tells = true
  await listen()
  listeners.notify('news')
  expect(onNews.mock.calls).toEqual([['news']])
})

it('one that is not needed any more is told so', async () => {
  const listeners = new Listeners()
  const channel = await new PostgresJsClient(listeners.sql).listen('a', () => {}, () => {})
  await channel.close()
  expect(listeners.unlisten).toHaveBeenCalledTimes(1)
})
