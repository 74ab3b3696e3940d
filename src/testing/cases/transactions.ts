/** Transactions on the versioned store, at each level of isolation: what etcd's client for Go promises of them. */
import assert from 'node:assert/strict'
import { setImmediate as turnOfTheLoop } from 'node:timers/promises'
import { Answers } from '../../core/answer.js'
import { OwnClaim } from '../../core/batcher.js'
import { Claims } from '../../core/claims.js'
import { OwnershipLostError } from '../../core/errors.js'
import { Hold } from '../../core/hold.js'
import { Ownership } from '../../core/ownership.js'
import { stm, type Committed, type StmOptions } from '../../primitives/stm.js'
import type { Isolation, Transaction } from '../../primitives/transaction.js'
import type { Suite } from '../conformance.js'
import { LONG_MS, type Process, type World } from '../harness.js'
import { replay, type Replayed } from '../replay.js'
import { committed, keysOf, now, shown, storeOf, text } from './storing.js'

type Apply<R> = (tx: Transaction) => R

/** A few commits of each of four take a fraction of a second. */
const PATIENCE_MS = 15_000

/** Those under which nothing can come of transactions that could not have come of one after the other. */
const SERIALIZABLE = ['serializable-snapshot', 'serializable', 'repeatable-reads'] as const satisfies readonly Isolation[]

export function transactions({ theme, test, traits }: Suite): void {
  if (!traits.transactions) return
  theme('transactions', () => {
    test('take one try if nobody is in the way', async (world) => {
      const a = await world.open()
      const [x, y] = keysOf(world, 'x', 'y')
      for (let i = 1; i <= 3; i++) {
        const { tries } = await run(a, async (tx) => {
          const count = Number(await tx.get(x)) + 1
          tx.put(x, String(count))
          tx.put(y, String(count))
        })
        assert.equal(tries, 1)
      }
      assert.deepEqual(shown(await now(storeOf(a), x, y))!.map((entry) => entry?.[0]), ['3', '3'])
    })

    test('write a new key for others to see, and read their own writes', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      const { result, revision } = await run(a, async (tx) => {
        tx.put(x, 'first')
        tx.put(x, 'last')
        const own = [await tx.get(x), await tx.rev(x)]
        tx.put(y, 'gone')
        tx.del(y)
        return [...own, await tx.get(y), await tx.get(y, x)]
      })
      assert.deepEqual(result, ['last', 0n, '', ''])
      const seen = await run(b, async (tx) => [await tx.get(x), await tx.rev(x), await tx.get(y)])
      assert.deepEqual(seen.result, ['last', revision, ''])
    })

    test('write nothing if they throw or are aborted in the middle', async (world) => {
      const a = await world.open()
      const [x] = keysOf(world, 'x')
      const reason = new Error('enough')
      await assert.rejects(run(a, (tx) => {
        tx.put(x, 'no')
        throw reason
      }), reason)
      const controller = new AbortController()
      await assert.rejects(run(a, async (tx) => {
        tx.put(x, 'no')
        await tx.get(x)
        controller.abort(reason)
      }, { signal: controller.signal }), reason)
      assert.deepEqual((await now(storeOf(a), x)).values, [undefined])
    })

    test('read everything as of one moment', async (world) => {
      const [a, b] = await world.three()
      const keys = keysOf(world, 'k0', 'k1', 'k2', 'k3', 'k4')
      const write = (i: number) => committed(storeOf(b), { puts: keys.map((key) => text(key, String(i))) })
      await write(0)
      for (const isolation of ['serializable-snapshot', 'serializable'] as const) {
        let written = 0
        const { result } = await run(a, async (tx) => {
          const values = []
          for (const key of keys) {
            values.push(await tx.get(key))
            // In between, for the first few tries.
            if (written < 3) await write(++written)
          }
          return values
        }, { isolation })
        assert.equal(new Set(result).size, 1, `${isolation}: ${String(result)}`)
      }
    })

    test('are applied twice if what they read is deleted meanwhile', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      for (const isolation of SERIALIZABLE) {
        await committed(storeOf(b), { puts: [text(x, 'there')] })
        const seen: string[] = []
        const { tries } = await run(a, async (tx) => {
          seen.push(await tx.get(x))
          if (seen.length === 1) await committed(storeOf(b), { deletes: [x] })
          tx.put(y, 'done')
        }, { isolation })
        assert.deepEqual([tries, seen], [2, ['there', '']], isolation)
      }
    })

    test('conflict over what they only write, at the highest level', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      const tries = async (isolation: Isolation) => {
        let count = 0
        return (await run(a, async (tx) => {
          await tx.get(x)
          if (++count === 1) await committed(storeOf(b), { puts: [text(y, 'theirs')] })
          tx.put(y, 'ours')
        }, { isolation })).tries
      }
      assert.equal(await tries('serializable-snapshot'), 2)
      assert.equal(await tries('serializable'), 1)
    })

    test('take three tries at most for two that write the same key', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      await committed(storeOf(a), { puts: [text(x, '0')] })
      const put = (process: Process) => run(process, async (tx) => {
        await tx.get(x)
        tx.put(y, '1')
      })
      const [one, two] = await Promise.all([put(a), put(b)])
      assert.ok(one.tries + two.tries <= 3, `${one.tries} and ${two.tries} tries`)
    })

    test('get their turn among others who write the same keys without a pause', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      const callers = [a, a, b, b].map((process) => ({ process, committed: 0 }))
      const giveUpAt = performance.now() + PATIENCE_MS
      await Promise.all(callers.map(async (caller) => {
        while (callers.some(({ committed }) => committed < 5) && performance.now() < giveUpAt) {
          await run(caller.process, async (tx) => {
            tx.put(x, String(Number(await tx.get(x)) - 1))
            tx.put(y, String(Number(await tx.get(y)) + 1))
          }, { prefetch: [x, y] })
          caller.committed++
          // Or those who share an event loop with it would get no answer.
          await turnOfTheLoop()
        }
      }))
      const counts = callers.map((caller) => caller.committed)
      assert.ok(Math.min(...counts) >= 5, `commits in ${PATIENCE_MS} ms: ${String(counts)}`)
      const [from, to] = shown(await now(storeOf(a), x, y))!.map((entry) => Number(entry?.[0]))
      const sum = counts.reduce((one, other) => one + other)
      assert.deepEqual([from, to], [-sum, sum])
    })

    test('may see what others change at the lowest level, and never conflict', async (world) => {
      const [a, b] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      const { tries } = await run(a, async (tx) => {
        await tx.get(x)
        await committed(storeOf(b), { puts: [text(x, 'theirs'), text(y, 'theirs')] })
        tx.put(y, await tx.get(y))
      }, { isolation: 'read-committed' })
      assert.equal(tries, 1)
    })

    if (traits.ownership) {
      for (const isolation of [...SERIALIZABLE, 'read-committed'] as const) {
        test(`write under a lock that they require, and nothing once another has it: ${isolation}`, async (world) => {
          const [a, b] = await world.three()
          const [x] = keysOf(world, 'x')
          const ours = await held(world, a)
          const count = (hold: Hold) => async (tx: Transaction) => {
            tx.requires(new Ownership(hold))
            tx.put(x, String(Number(await tx.get(x)) + 1))
          }
          for (let i = 1; i <= 3; i++) assert.equal((await run(a, count(ours), { isolation, prefetch: i === 2 ? [x] : [] })).tries, 1)
          await b.revoke('key', 'now')
          const theirs = await held(world, b)
          await run(b, count(theirs), { isolation })
          let tries = 0
          await assert.rejects(run(a, (tx) => {
            tries++
            return count(ours)(tx)
          }, { isolation }), OwnershipLostError)
          assert.deepEqual([tries, ours.isLost], [1, true])
          await run(b, count(theirs), { isolation })
          assert.equal(shown(await now(storeOf(b), x))[0]?.[0], '5')
        })
      }

      test('that only read are told as well that a lock is not theirs', async (world) => {
        const [a, b] = await world.three()
        const [x] = keysOf(world, 'x')
        const hold = await held(world, a)
        const read = (tx: Transaction) => {
          tx.requires(new Ownership(hold))
          return tx.get(x)
        }
        assert.equal((await run(a, read)).result, '')
        await b.revoke('key', 'now')
        await assert.rejects(run(a, read), OwnershipLostError)
      })
    }

    for (const isolation of SERIALIZABLE) {
      test(`keep the sum of five accounts: ${isolation}`, async (world) => {
        const processes = await world.three()
        const accounts = keysOf(world, 'a0', 'a1', 'a2', 'a3', 'a4')
        const begin = await committed(storeOf(processes[0]), { puts: accounts.map((key) => text(key, '100')) })
        const history = new History(begin, new Map(accounts.map((key) => [key, '100'])))
        await Promise.all(Array.from({ length: 10 }, (_, i) => history.run(processes[i % 3]!, async (tx) => {
          const [from, to] = [accounts[i % 5]!, accounts[(i * 3 + 1) % 5]!]
          const amount = Number(await tx.get(from)) >> 1
          tx.put(from, String(Number(await tx.get(from)) - amount))
          tx.put(to, String(Number(await tx.get(to)) + amount))
        }, isolation)))
        const end = history.check()
        const { values } = await now(storeOf(processes[0]), ...accounts)
        const balances = values.map((entry) => Buffer.from(entry!.value).toString())
        assert.deepEqual(balances, accounts.map((key) => end.get(key)))
        assert.equal(balances.reduce((sum, balance) => sum + Number(balance), 0), 500)
      })

      test(`let no two go off duty that rest on each other: ${isolation}`, async (world) => {
        const processes = await world.three()
        const pairs = Array.from({ length: 4 }, (_, i) => keysOf(world, `on-call-${i}-a`, `on-call-${i}-b`))
        const begin = await committed(storeOf(processes[0]), { puts: pairs.flat().map((key) => text(key, 'on')) })
        const history = new History(begin, new Map(pairs.flat().map((key) => [key, 'on'])))
        // Write skew: each reads both and writes one.
        await Promise.all(pairs.flatMap((pair, i) => pair.map((own, side) => history.run(processes[(i + side) % 3]!, async (tx) => {
          const [one, other] = [await tx.get(pair[0]), await tx.get(pair[1])]
          if (one === 'on' && other === 'on') tx.put(own, 'off')
        }, isolation))))
        const end = history.check()
        for (const pair of pairs) assert.equal(pair.filter((key) => end.get(key) === 'on').length, 1)
      })
    }
  })
}

/** What the process takes itself to hold, and goes on to: what the store tells reaches the world only. */
async function held(world: World, process: Process): Promise<Hold> {
  const { backend, owner, clock } = process
  const claims = new Claims(() => backend, { prefix: world.prefix, owner, clock, retryMs: LONG_MS }, () => {})
  const claim = new OwnClaim({ ...world.claim('key'), type: undefined, metadata: undefined, place: undefined })
  const { epoch } = await process.hold(claim)
  const now = clock.now()
  const terms = { autoRenew: false, renewEveryMs: undefined, maxHoldMs: undefined }
  return new Hold(claim, { epoch, deadline: now + LONG_MS, turn: 0, now }, terms, claims)
}

async function run<R>(process: Process, apply: Apply<R>, options: StmOptions = {}): Promise<Committed & { result: Awaited<R> }> {
  const { backend, clock } = process
  const answers = new Answers(clock, backend)
  let outcome: Committed | undefined
  try {
    const around = { backend, clock, answers, closing: new AbortController().signal }
    const result = await stm(around, apply, { ...options, onCommit: (commit) => (outcome = commit) })
    return { ...outcome!, result }
  } finally {
    answers.stop()
  }
}

interface Recorded {
  get(key: string): Promise<string>
  put(key: string, value: string): void
}

/** What was read and written, by transactions that ran at the same time. */
class History {
  readonly #begin: bigint
  readonly #state: ReadonlyMap<string, string>
  readonly #entries: Replayed[] = []

  constructor(begin: bigint, state: ReadonlyMap<string, string>) {
    this.#begin = begin
    this.#state = state
  }

  async run(process: Process, apply: (tx: Recorded) => Promise<void>, isolation: Isolation): Promise<void> {
    let reads = new Map<string, string>()
    let writes = new Map<string, string>()
    const { revision } = await run(process, async (tx) => {
      reads = new Map()
      writes = new Map()
      await apply({
        get: async (key) => {
          const value = await tx.get(key)
          if (!writes.has(key)) reads.set(key, value)
          return value
        },
        put: (key, value) => {
          writes.set(key, value)
          tx.put(key, value)
        },
      })
    }, { isolation })
    this.#entries.push({ revision, reads, writes })
  }

  /** → what is there in the end */
  check(): Map<string, string> {
    return replay(this.#begin, this.#state, this.#entries)
  }
}
