/** Keys, prefixes, types and metadata are plain text, and come back as they went in. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Suite } from '../conformance.js'

/** Each has broken some program that spliced or interpreted keys. All are different, so they must never mix. */
export const ODD_KEYS = [
  'a', 'A', 'a ', ' a', 'a/b', 'a/', '/a', 'a:b', 'a:', ':a', 'a%2Fb', 'a%2fb', 'a%',
  'a+b', 'a_b', 'a.b', 'a,b', 'a|b', 'a-1',
  '\r\n', 'line\r\nDEL x', 'a\0b', 'a\0', '\0', '\t', '\x7f', '\x1b[31m',
  '{}', '{a}', '{a}{b}', '}{', 'x{a', 'x}a', '{', '}', '{}a', '{a}b', 'b{a}',
  '"', "'", "''", '`', '\\', '\\\\', "'; DROP TABLE locks; --", '$1', '${a}', '?', '*', '[a]', '%s', '<b>', '&amp;',
  'é', 'e\u0301', 'ß', 'SS', 'ı', 'I', 'İ', '鎖', '🔒', '👩‍👩‍👧', '\u202Eabc', '\uFEFFa', '\u00A0',
  '__proto__', 'constructor', 'toString', 'hasOwnProperty', 'null', 'undefined', '0', '00', '-1', '1e3', 'true',
  'k'.repeat(512), '鎖'.repeat(170), '🔒'.repeat(128),
]

const ODD_TEXTS = [
  '{}', '""', 'null', '[1,2.5e-7,true]', '{"a":{"b":["c","\\u0000"]}}',
  '"鎖 🔒 é"', '"line\\nbreak"', '{\n  "pretty": true\r\n}',
  '{"__proto__":{"x":1}}', '"|,:;{}[]\\"\'`\\\\"', JSON.stringify('x'.repeat(2_000)),
]

export function keys({ theme, test }: Suite): void {
  theme('keys and texts', () => {
    test('keeps odd keys apart, and gives them back as they are', async (world) => {
      const [a, b] = await world.three()
      const claims = ODD_KEYS.map((key) => world.claim(key))
      for (const claim of claims) await a.hold(claim)
      for (const claim of claims) {
        assert.equal((await b.refused(world.claim(claim.resource))).holder?.owner, a.owner, JSON.stringify(claim.resource))
      }
      assert.deepEqual((await b.inspect()).map(({ key }) => key), [...ODD_KEYS].sort())
      for (const claim of claims) {
        assert.equal((await a.renew(claim, claim.ttlMs)).status, 'held', JSON.stringify(claim.resource))
        assert.equal(await a.release(claim), 'released', JSON.stringify(claim.resource))
      }
      assert.deepEqual(await b.inspect(), [])
    })

    test('finds odd keys by their whole text as a prefix', async (world) => {
      const a = await world.open()
      for (const key of ODD_KEYS) await a.hold(world.claim(key))
      for (const prefix of ODD_KEYS) {
        const seen = (await a.inspect(prefix)).map(({ key }) => key)
        assert.deepEqual(seen, ODD_KEYS.filter((key) => key.startsWith(prefix)).sort(), JSON.stringify(prefix))
      }
    })

    test('hands odd keys over, and revokes them', async (world) => {
      const [a, b] = await world.three()
      for (const key of ODD_KEYS) {
        const held = world.claim(key)
        const next = world.claim(key)
        await a.hold(held)
        await b.queue(next)
        await a.release(held)
        assert.equal((await b.granted(next)).resource, key)
        assert.equal(await a.revoke(key, 'now'), 'freed', JSON.stringify(key))
        assert.equal(await a.revoke(key, 'now'), 'free', JSON.stringify(key))
      }
    })

    test('gives type and metadata back in a refusal and in inspect', async (world) => {
      const [a, b] = await world.three()
      for (const [i, text] of ODD_TEXTS.entries()) {
        const key = `key-${i}`
        await a.hold(world.claim(key, { type: text, metadata: text }))
        const { holder } = await b.refused(world.claim(key))
        assert.deepEqual([holder?.type, holder?.metadata], [text, text])
        const [resource] = await b.inspect(key)
        assert.deepEqual([resource?.holders[0]?.type, resource?.holders[0]?.metadata], [text, text])
        await a.revoke(key, 'now')
      }
    })

    test('carries type and metadata of a waiter over to its hold, and forgets those of the one before', async (world) => {
      const [a, b, c] = await world.three()
      for (const [i, text] of ODD_TEXTS.entries()) {
        const key = `key-${i}`
        const held = world.claim(key, { type: 'before', metadata: '"before"' })
        const next = world.claim(key, { type: text, metadata: text })
        const last = world.claim(key)
        await a.hold(held)
        await b.queue(next)
        await c.queue(last)
        await a.release(held)
        await b.granted(next)
        const { holder } = await c.queue(last)
        assert.deepEqual([holder?.owner, holder?.type, holder?.metadata], [b.owner, text, text])
        await b.release(next)
        await c.granted(last)
        const after = await a.refused(world.claim(key))
        assert.deepEqual([after.holder?.owner, after.holder?.type, after.holder?.metadata], [c.owner, undefined, undefined])
        await c.release(last)
      }
    })

    test('keeps prefixes apart', async (world) => {
      const prefixes = ['', ':x', ':', '2', '/x', '*', '{x}', 'É'].map((end) => world.prefix + end)
      const opened = await Promise.all(prefixes.map((prefix) => world.open(prefix)))
      for (const one of opened) {
        await one.hold(world.claim('key'))
        await one.hold(world.claim('x:key'))
      }
      for (const one of opened) {
        assert.deepEqual((await one.inspect()).map(({ key, holders }) => [key, holders[0]?.owner]), [
          ['key', one.owner], ['x:key', one.owner],
        ])
      }
      assert.equal(await opened[0]!.revoke('key', 'now'), 'freed')
      for (const one of opened.slice(1)) await one.refused(world.claim('key'))
    })

    test('wakes only the prefix and the process that it concerns', async (world) => {
      const [a, b] = await world.three()
      const elsewhere = await world.open(`${world.prefix}2`)
      const held = world.claim('key')
      const next = world.claim('key')
      await a.hold(held)
      const theirs = world.claim('key')
      await elsewhere.hold(theirs)
      await elsewhere.queue(world.claim('key'))
      await b.queue(next)
      await a.release(held)
      await b.granted(next)
      await sleep(20)
      // Each may have heard that somebody waits for what it holds.
      for (const [one, claim] of [[a, held], [elsewhere, theirs]] as const) {
        const others = one.wakeUps.filter((wakeUp) => !(wakeUp.kind === 'look' || (wakeUp.kind === 'contended' && wakeUp.claimId === claim.id)))
        assert.deepEqual(others, [])
      }
    })
  })
}
