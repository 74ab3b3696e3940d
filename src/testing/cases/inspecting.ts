/** What can be seen from outside: who holds, who waits. */
import assert from 'node:assert/strict'
import type { Suite } from '../conformance.js'
import { assertBetween, LONG_MS } from '../harness.js'

export function inspecting({ theme, test }: Suite): void {
  theme('inspecting', () => {
    test('shows nothing where nothing is', async (world) => {
      const [a, b] = await world.three()
      assert.deepEqual(await a.inspect(), [])
      const claim = world.claim('key')
      await b.hold(claim)
      await b.release(claim)
      assert.deepEqual(await a.inspect(), [])
    })

    test('shows holders and waiters, in order', async (world) => {
      const [a, b, c] = await world.three()
      const from = performance.now()
      const { epoch } = await a.hold(world.claim('key', { type: 'job', metadata: '{"n":1}' }))
      await b.queue(world.claim('key'))
      await c.queue(world.claim('key'))
      await b.hold(world.claim('other'))
      const [resource, other] = await a.inspect()
      const spent = performance.now() - from

      const { holders, ...rest } = resource!
      assert.deepEqual(rest, { key: 'key', limit: 1, waiters: [{ owner: b.owner, take: 1 }, { owner: c.owner, take: 1 }] })
      const [holder] = holders
      assert.equal(holders.length, 1)
      const { heldForMs, expiresInMs, ...told } = holder!
      assert.deepEqual(told, { owner: a.owner, type: 'job', metadata: '{"n":1}', take: 1, epoch })
      assertBetween(heldForMs, 0, spent)
      assertBetween(expiresInMs, LONG_MS - spent, LONG_MS)

      assert.equal(other?.key, 'other')
      assert.equal(other.holders[0]?.owner, b.owner)
      assert.ok(!('type' in other.holders[0]!) && !('metadata' in other.holders[0]!), 'what was not given is not there')
      assert.deepEqual(other.waiters, [])
    })

    test('leaves out what has expired', async (world) => {
      const [a, b] = await world.three()
      const gone = world.claim('gone')
      await a.hold(gone)
      await a.hold(world.claim('kept'))
      await world.letExpire(a, gone)
      assert.deepEqual((await b.inspect()).map(({ key }) => key), ['kept'])
    })

    test('shows every resource once, however many', async (world) => {
      const [a, b] = await world.three()
      const keys = Array.from({ length: 250 }, (_, i) => `key-${String(i).padStart(3, '0')}`)
      for (let i = 0; i < keys.length; i += 50) {
        await a.backend.claim(keys.slice(i, i + 50).map((key) => world.claim(key)), 'queue')
      }
      assert.deepEqual((await b.inspect('key-')).map(({ key }) => key), keys)
      assert.deepEqual((await b.inspect('key-24')).map(({ key }) => key), keys.slice(240))
    })

    test('can be left in the middle', async (world) => {
      const a = await world.open()
      await a.backend.claim(['a', 'b', 'c'].map((key) => world.claim(key)), 'queue')
      for await (const { key } of a.backend.inspect('')) {
        assert.ok(['a', 'b', 'c'].includes(key))
        break
      }
      assert.equal((await a.inspect()).length, 3)
    })

    test('takes * ? [ ] and \\ in a prefix as they are', async (world) => {
      const a = await world.open()
      const keys = ['a*', 'a*b', 'a?', 'a[b]', 'a\\', 'a\\*', 'ab', 'a', 'aa', '*', '%', '_', 'A', '^a', 'a-b']
      for (const key of keys) await a.hold(world.claim(key))
      const prefixes = ['', 'a', 'a*', '*', '?', 'a?', 'a[', 'a[b]', '[a]', '[^x]', 'a\\', '\\', 'a\\*', '%', '_', 'a-', 'no']
      for (const prefix of prefixes) {
        const seen = (await a.inspect(prefix)).map(({ key }) => key)
        assert.deepEqual(seen, keys.filter((key) => key.startsWith(prefix)).sort(), `inspect(${JSON.stringify(prefix)})`)
      }
    })
  })
}
