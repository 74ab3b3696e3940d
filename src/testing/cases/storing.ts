/** Keys with values and versions: one moment for all that is read, and all or nothing for what is written. */
import assert from 'node:assert/strict'
import type { Commit, CommitState, Snapshot, VersionedStore } from '../../core/backend.js'
import type { Suite } from '../conformance.js'
import { expectStatus, type Process, type World } from '../harness.js'
import { ODD_KEYS } from './keys.js'

export function storing({ theme, test, traits }: Suite): void {
  theme('the versioned store', () => {
    test('is there if the traits say so', async (world) => {
      const { backend } = await world.open()
      assert.equal(backend.store !== undefined, traits.transactions)
    })

    if (!traits.transactions) return

    test('gives what was written, with the revision of its commit, until it is deleted', async (world) => {
      const [a, b] = await stores(world)
      const [x, y] = keysOf(world, 'x', 'y')
      const before = await now(a, x, y)
      assert.deepEqual(before.values, [undefined, undefined])
      const first = await committed(a, { puts: [text(x, 'one'), text(y, '')] })
      assert.ok(first > before.revision, `${first} comes after ${before.revision}`)
      assert.deepEqual(shown(await now(b, x, y)), [['one', first], ['', first]])
      const second = await committed(b, { puts: [text(x, 'two')], deletes: [y] })
      assert.ok(second > first, `${second} comes after ${first}`)
      const after = await now(a, y, x)
      assert.deepEqual(shown(after), [undefined, ['two', second]])
      assert.ok(after.revision >= second)
      await committed(a, { deletes: [x, y] })
      assert.deepEqual((await now(b, x, y)).values, [undefined, undefined])
    })

    test('keeps any bytes, of any number', async (world) => {
      const [a, b] = await stores(world)
      const all = Uint8Array.from({ length: 256 }, (_, i) => i)
      const values = [all, new Uint8Array(), Buffer.from('鎖 🔒 \0'), Uint8Array.of(0xff, 0xfe), Buffer.alloc(100_000, 0xe9), Buffer.from('b{"a":1}')]
      const keys = keysOf(world, ...values.map((_, i) => `bytes-${i}`))
      await committed(a, { puts: keys.map((key, i) => ({ key, value: values[i]! })) })
      const seen = await now(b, ...keys)
      for (const [i, value] of values.entries()) assert.deepEqual(Buffer.from(seen.values[i]!.value), Buffer.from(value))
    })

    test('keeps odd keys apart', async (world) => {
      const [a, b] = await stores(world)
      await committed(a, { puts: ODD_KEYS.map((key, i) => text(key, String(i))) })
      const seen = await now(b, ...ODD_KEYS)
      assert.deepEqual(shown(seen)!.map((entry) => entry?.[0]), ODD_KEYS.map((_, i) => String(i)))
      await committed(b, { deletes: ODD_KEYS })
    })

    test('writes everything if all comparisons are true, and else nothing, and says what is there', async (world) => {
      const [a, b] = await stores(world)
      const [x, y, z] = keysOf(world, 'x', 'y', 'z')
      const one = await committed(a, { puts: [text(x, '1')] })
      const two = await committed(a, { puts: [text(y, '1')] })
      const equal = (key: string, revision: bigint) => ({ key, is: 'equal', revision }) as const
      const atMost = (key: string, revision: bigint) => ({ key, is: 'at-most', revision }) as const
      const wrong = [
        [equal(x, one + 1n)], [equal(x, 0n)], [equal(z, one)], [equal(x, one), equal(y, one)], [atMost(y, two - 1n)], [atMost(x, 0n)],
        [equal(x, one), atMost(z, 0n), atMost(y, one)],
      ]
      for (const comparisons of wrong) {
        const state = await b.commit({ comparisons, puts: [text(z, 'no'), text(x, 'no')], deletes: [y], reads: [y, z, x] })
        const { revision, values } = expectStatus(state, 'conflict')
        assert.deepEqual(shown({ revision, values }), [['1', two], undefined, ['1', one]], JSON.stringify(comparisons.map(({ is }) => is)))
        assert.ok(revision >= two)
      }
      const right = [equal(x, one), equal(y, two), equal(z, 0n), atMost(z, 0n), atMost(x, one), atMost(y, two + 100n)]
      const three = await committed(b, { comparisons: right, puts: [text(x, '2'), text(z, '2')], deletes: [y] })
      assert.deepEqual(shown(await now(a, x, y, z)), [['2', three], undefined, ['2', three]])
    })

    test('compares without writing', async (world) => {
      const [a] = await stores(world)
      const [x] = keysOf(world, 'x')
      const one = await committed(a, { puts: [text(x, '1')] })
      expectStatus(await a.commit({ comparisons: [{ key: x, is: 'equal', revision: one }], puts: [], deletes: [], reads: [] }), 'committed')
      expectStatus(await a.commit({ comparisons: [{ key: x, is: 'equal', revision: 0n }], puts: [], deletes: [], reads: [] }), 'conflict')
      assert.deepEqual(shown(await now(a, x)), [['1', one]])
    })

    test('reads what was there at an earlier revision, or says that it cannot', async (world) => {
      const [a, b] = await stores(world)
      const [x, y, gone, never] = keysOf(world, 'x', 'y', 'gone', 'never')
      await committed(a, { puts: [text(x, '1'), text(y, '1'), text(gone, '1')] })
      const { revision } = await now(a, x)
      // What others do to other keys is in nobody's way.
      await committed(b, { puts: [text(y, '2')] })
      assert.deepEqual(shown((await a.read([x, never], revision))!)!.map((entry) => entry?.[0]), ['1', undefined])
      await committed(b, { puts: [text(x, '2')], deletes: [gone] })
      for (const key of [x, y, gone]) {
        const then = await a.read([key], revision)
        if (then) assert.deepEqual(shown(then)[0]?.[0], '1', key)
      }
      assert.deepEqual(shown(await now(a, x, gone))!.map((entry) => entry?.[0]), ['2', undefined])
    })

    test('lets one of many commits through that all rest on the same revision', async (world) => {
      const all = await stores(world)
      const [x] = keysOf(world, 'x')
      const race = Array.from({ length: 9 }, (_, i) => all[i % 3]!.commit({
        comparisons: [{ key: x, is: 'equal', revision: 0n }], puts: [text(x, String(i))], deletes: [], reads: [x],
      }))
      const states = await Promise.all(race)
      const won = states.findIndex(({ status }) => status === 'committed')
      assert.equal(states.filter(({ status }) => status === 'conflict').length, 8)
      const { revision } = states[won] as Extract<CommitState, { status: 'committed' }>
      for (const state of states) {
        if (state.status === 'conflict') assert.deepEqual(shown(state), [[String(won), revision]])
      }
    })

    test('shows a commit as a whole, and each with a revision of its own', async (world) => {
      const [a, b, c] = await stores(world)
      const [x, y] = keysOf(world, 'x', 'y')
      const revisions: bigint[] = []
      const write = async (store: VersionedStore, name: string) => {
        for (let i = 0; i < 8; i++) revisions.push(await committed(store, { puts: [text(x, `${name}${i}`), text(y, `${name}${i}`)] }))
      }
      const writing = Promise.all([write(a, 'a'), write(b, 'b')])
      let isOver = false
      const over = writing.finally(() => (isOver = true))
      do {
        const { values: [first, second] } = await now(c, x, y)
        assert.deepEqual(first, second)
      } while (!isOver)
      await over
      assert.equal(new Set(revisions).size, 16)
    })
  })
}

export function storeOf({ backend }: Process): VersionedStore {
  assert.ok(backend.store, 'there is a store')
  return backend.store
}

async function stores(world: World): Promise<[VersionedStore, VersionedStore, VersionedStore]> {
  const [a, b, c] = await world.three()
  return [storeOf(a), storeOf(b), storeOf(c)]
}

/** Keys of this test alone: a store may take them as they are, whatever the prefix is. */
export function keysOf<Names extends readonly string[]>(world: World, ...names: Names): { [I in keyof Names]: string } {
  return names.map((name) => `${world.prefix}/${name}`) as { [I in keyof Names]: string }
}

export function text(key: string, value: string): { key: string; value: Uint8Array } {
  return { key, value: Buffer.from(value) }
}

export async function now(store: VersionedStore, ...keys: readonly string[]): Promise<Snapshot> {
  const snapshot = await store.read(keys)
  assert.equal(snapshot?.values.length, keys.length, 'one answer for each key')
  return snapshot!
}

export async function committed(store: VersionedStore, commit: Partial<Commit>): Promise<bigint> {
  return expectStatus(await store.commit({ comparisons: [], puts: [], deletes: [], reads: [], ...commit }), 'committed').revision
}

export function shown({ values }: Snapshot): ([value: string, revision: bigint] | undefined)[] {
  return values.map((entry) => entry && [Buffer.from(entry.value).toString(), entry.revision])
}
