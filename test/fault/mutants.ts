/**
 * Mistakes in our own code that a run of the nemesis must find. Each is one change in a copy of the built package; which
 * faults bring it to light says what the place is there for.
 */
import { cp, readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { makeFolder } from '../support/processes.js'
import type { BackendName } from './environment.js'
import type { Kind } from './work.js'

export interface Mutant {
  readonly name: string
  /** Below dist/. */
  readonly file: string
  /** In all the places where it is: scripts have parts in common. */
  readonly from: string
  readonly to: string
  readonly faults: readonly string[]
  /** Redis, if not given. */
  readonly backend?: BackendName
  /** Beside locks: nothing, if not given. */
  readonly work?: readonly Kind[]
  /** The guarantee that it breaks. */
  readonly breaks: string
  /** Whether that takes some luck. */
  readonly isSeldom?: boolean
}

const DIST = fileURLToPath(new URL('../../dist', import.meta.url))

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'a hold has no deadline of its own',
    file: 'core/hold.js',
    from: 'if (now < this.endsAt)\n            return;',
    to: 'if (true) return;',
    faults: ['client stop', 'partition', 'event loop blocked'],
    breaks: 'one holder',
  },
  {
    name: 'a grant counts for three TTLs',
    file: 'core/claim-loop.js',
    from: 'Math.min(deadlineOf(since, forMs), now + forMs - marginMs(forMs))',
    to: 'now + 3 * forMs',
    faults: ['client stop', 'partition'],
    breaks: 'one holder',
  },
  {
    name: 'a renewal counts for three TTLs',
    file: 'core/hold.js',
    from: 'this.#deadline = Math.max(this.#deadline, deadlineOf(sentAt, this.#ttlMs));',
    to: 'this.#deadline = this.#around.clock.now() + 3 * this.#ttlMs;',
    faults: ['client stop', 'partition'],
    breaks: 'one holder',
    isSeldom: true,
  },
  {
    name: 'nothing is renewed',
    file: 'core/keeper.js',
    from: 'this.#batcher.renewAll(holds).then(',
    to: 'new Promise(() => {}).then(',
    faults: ['client stop'],
    breaks: 'nothing lost',
  },
  {
    name: 'a hold that is passed on keeps its fence',
    file: 'core/hold.js',
    from: 'turn: turn + 1, now',
    to: 'turn, now',
    faults: ['client stop'],
    breaks: 'unique fences',
  },
  {
    name: 'all grants have the same epoch',
    file: 'backends/redis/steps.js',
    from: "epoch: BigInt(epoch + i), waiting: 0",
    to: "epoch: 1n, waiting: 0",
    faults: ['client stop'],
    breaks: 'fence order',
  },
  {
    name: 'the store counts a quarter of the TTL',
    file: 'backends/redis/lua.js',
    from: "'PX', string.sub(claim, 34))",
    to: "'PX', math.ceil(string.sub(claim, 34) / 4))",
    faults: ['client stop'],
    breaks: 'nothing lost',
  },
  {
    name: 'a release frees whoever holds',
    file: 'backends/redis/lua.js',
    from: 'if value and (id_of(value) == id or',
    to: 'if value and (true or',
    // Held back, and so carried out when another holds.
    faults: ['one-way partition: nothing gets there'],
    breaks: 'one holder',
  },
  {
    name: 'last come, first served',
    file: 'backends/redis/lua.js',
    from: "redis.call('ZRANGE', queue, 0, 0)",
    to: "redis.call('ZRANGE', queue, -1, -1)",
    faults: ['client stop'],
    breaks: 'first come, first served',
  },
  {
    name: 'nobody is told that it holds',
    file: 'core/claims.js',
    from: 'loop.granted(wakeUp.epoch, wakeUp.since, wakeUp.waiting, wakeUp.forMs);',
    to: ';',
    faults: ['client stop'],
    breaks: 'enough traffic',
  },
  {
    name: 'etcd: in the order of names instead of creation',
    file: 'backends/etcd/line.js',
    from: 'a.createRevision < b.createRevision',
    to: 'a.key < b.key',
    faults: ['client stop'],
    backend: 'etcd',
    breaks: 'one holder',
  },
  {
    name: 'etcd: a renewal does not look whether its key is there',
    file: 'backends/etcd/steps.js',
    from: '!keys.has(own.key)',
    to: 'false',
    faults: ['claims deleted'],
    backend: 'etcd',
    breaks: 'loss in time',
  },
  {
    name: 'a session that has ended does not tell its mutexes',
    file: 'primitives/session.js',
    from: '(member) => member.orphan(reason)',
    to: '() => {}',
    faults: ['client stop'],
    work: ['mutex'],
    breaks: 'sessions end',
  },
  {
    name: 'a leader does not look at its session',
    file: 'primitives/session.js',
    from: 'hold.onEnd((reason) => controller.abort(reason));',
    to: ';',
    faults: ['client stop', 'partition'],
    work: ['election'],
    breaks: 'sessions end',
  },
  {
    name: 'all leaders have the same term',
    file: 'primitives/tenure.js',
    from: 'return this.hold?.epoch ?? 0n;',
    to: 'return 1n;',
    faults: ['client stop'],
    work: ['election'],
    breaks: 'one leader per term',
  },
  {
    name: 'observers hear the latest first',
    file: 'primitives/board.js',
    from: '.filter((one) => isAfter(one, seen))',
    to: '.filter((one) => isAfter(one, seen)).toReversed()',
    faults: ['client stop'],
    work: ['election'],
    breaks: 'observers in order',
  },
  {
    name: 'observers hear only who leads when they come',
    file: 'primitives/board.js',
    from: '.filter((one) => isAfter(one, seen))',
    to: '.filter(() => false)',
    faults: ['client stop'],
    work: ['election'],
    breaks: 'observers keep up',
    isSeldom: true,
  },
  {
    name: 'what leaders say is counted from 1 again when the store has forgotten',
    file: 'primitives/board.js',
    from: 'last < epoch ? epoch : last + 1n',
    to: 'last + 1n',
    faults: ['FLUSHALL'],
    work: ['election'],
    breaks: 'observers in order',
  },
  {
    name: 'transactions compare nothing',
    file: 'primitives/transaction.js',
    from: 'comparesReads: true',
    to: 'comparesReads: false',
    faults: ['client stop'],
    work: ['transfers'],
    breaks: 'serializable',
  },
  {
    name: 'transactions compare only what they write',
    file: 'primitives/transaction.js',
    from: 'of this.#reads)',
    to: 'of [...this.#reads].filter(([key]) => this.#writes.has(key)))',
    faults: ['client stop'],
    work: ['duties'],
    breaks: 'serializable',
  },
]

/** Gives what a worker imports. */
export async function makeMutant({ file, from, to }: Mutant): Promise<string> {
  const folder = makeFolder('mutant')
  await cp(DIST, folder, { recursive: true })
  // Where it finds the drivers.
  await symlink(join(DIST, '../node_modules'), join(folder, 'node_modules'))
  const path = join(folder, file)
  const source = await readFile(path, 'utf8')
  if (!source.includes(from)) throw new Error(`"${from}" is not in ${file}: the mutant has to be written anew`)
  await writeFile(path, source.replaceAll(from, () => to))
  return `${new URL('./controls/mutant.mjs', import.meta.url).href}?of=${encodeURIComponent(pathToFileURL(folder).href)}`
}
