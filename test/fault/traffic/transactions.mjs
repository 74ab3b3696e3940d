/** Transactions without end, for worker.mjs. Each value has the name of the transaction that wrote it: what was read tells whose it is. */

const ACCOUNTS = 4
const BALANCE = 100
const ISOLATIONS = ['serializable-snapshot', 'serializable', 'repeatable-reads']

/** Those that one dealing is about. In another generation there are others. */
const keysOf = (prefix, dealing, generation) => {
  const names = { transfers: Array.from({ length: ACCOUNTS }, (_, i) => `account-${i}`), duties: ['duty-a', 'duty-b'], owned: ['owned'] }[dealing]
  return names.map((name) => `${prefix}/tx/${generation}/${name}`)
}

const numberIn = (value) => Number(value.split('#')[0])

/** What is done with the keys of a dealing. The last only looks. */
const DEALINGS = { transfers: transfer, duties: changeDuty, owned: signed }

/** `around`: tell, visit, random, between, prefix, nameOf. `owner`: of what it requires, with its fence. */
export async function transact(manager, dealing, tx, around, { isLast = false, owner } = {}) {
  const { tell, visit, random, prefix, nameOf } = around
  const { generation } = await visit('generation', { key: dealing })
  const keys = keysOf(prefix, dealing, generation)
  const isolation = ISOLATIONS[Math.floor(random() * ISOLATIONS.length)]
  const [from, to] = chosen(keys, random)
  try {
    await manager.stm(async (all) => {
      const recorded = new Recorded(all, tx)
      if (owner) all.requires(owner.isOwner())
      if (isLast) for (const key of keys) await recorded.get(key)
      else await DEALINGS[dealing](recorded, keys, { from, to, random, owner })
      const { reads, writes } = recorded
      // From here on nobody knows, until the store has answered.
      tell('trying', { tx, dealing, generation, reads: await withRevisions(all, reads), writes: [...writes] })
    }, { isolation, onCommit: (commit) => tell('committed', { tx, ...commit }) })
  } catch (error) {
    tell('uncommitted', { tx, error: nameOf(error) })
    return error
  }
}

function chosen(keys, random) {
  const from = Math.floor(random() * keys.length)
  return [keys[from], keys[(from + 1 + Math.floor(random() * (keys.length - 1))) % keys.length]]
}

async function transfer(tx, keys, { from, to, random }) {
  if ((await tx.get(from)) === '') return begin(tx, keys, BALANCE)
  const amount = Math.floor(random() * numberIn(await tx.get(from)))
  const before = numberIn(await tx.get(to))
  tx.put(from, numberIn(await tx.get(from)) - amount)
  tx.put(to, before + amount)
}

/** 1: on duty. */
async function changeDuty(tx, keys, { from: own, to: other }) {
  if ((await tx.get(own)) === '') return begin(tx, keys, 1)
  const [mine, theirs] = [numberIn(await tx.get(own)), numberIn(await tx.get(other))]
  if (mine === 0) tx.put(own, 1)
  else if (theirs === 1) tx.put(own, 0)
}

/** By whoever has the mutex. */
async function signed(tx, [key], { owner }) {
  await tx.get(key)
  tx.put(key, owner.fence)
}

async function begin(tx, keys, value) {
  for (const key of keys) await tx.get(key)
  for (const key of keys) tx.put(key, value)
}

async function withRevisions(tx, reads) {
  const all = []
  for (const [key, value] of reads) all.push([key, value, await tx.rev(key)])
  return all
}

class Recorded {
  reads = new Map()
  writes = new Map()
  #all
  #tx

  constructor(all, tx) {
    this.#all = all
    this.#tx = tx
  }

  async get(key) {
    const value = await this.#all.get(key)
    if (!this.writes.has(key)) this.reads.set(key, value)
    return value
  }

  put(key, number) {
    const value = `${number}#${this.#tx}`
    this.writes.set(key, value)
    this.#all.put(key, value)
  }
}
