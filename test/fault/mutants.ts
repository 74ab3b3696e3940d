/**
 * Mistakes in our own code that a run of the nemesis must find. Each is a change of one place in a copy of the built package; which
 * faults bring it to light says what the place is there for.
 */
import { cp, readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { makeFolder } from '../support/processes.js'

export interface Mutant {
  readonly name: string
  /** Below dist/. */
  readonly file: string
  /** Is there once. */
  readonly from: string
  readonly to: string
  readonly faults: readonly string[]
  /** The guarantee that it breaks. */
  readonly breaks: string
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
    name: 'a grant counts from after its reply',
    file: 'core/claim-loop.js',
    from: 'this.#held(state.epoch, sentAt, state.waiting',
    to: 'this.#held(state.epoch, this.#around.clock.now() + 2_000, state.waiting',
    faults: ['client stop', 'partition'],
    breaks: 'one holder',
  },
  {
    name: 'a renewal counts for three TTLs',
    file: 'core/hold.js',
    from: 'this.#deadline = Math.max(this.#deadline, deadlineOf(sentAt, this.#ttlMs));',
    to: 'this.#deadline = this.#around.clock.now() + 3 * this.#ttlMs;',
    faults: ['client stop', 'partition', 'delay'],
    breaks: 'one holder',
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
    faults: ['partition', 'client stop', 'delay'],
    breaks: 'one holder',
  },
  {
    name: 'a release frees whoever holds',
    file: 'backends/redis/lua.js',
    from: 'string.sub(value, 1, 32) == ARGV[item] and call',
    to: 'call',
    faults: ['client stop', 'delay'],
    breaks: 'one holder',
  },
  {
    name: 'a free lock is taken in front of those who wait',
    file: 'backends/redis/lua.js',
    from: "call('EXISTS', lock, KEYS[item * 2 + 1]) == 0",
    to: "call('EXISTS', lock) == 0",
    faults: ['client stop'],
    breaks: 'first come, first served',
  },
  {
    name: 'nobody is told that it holds',
    file: 'core/claims.js',
    from: 'loop.granted(wakeUp.epoch, wakeUp.since, wakeUp.waiting);',
    to: ';',
    faults: ['client stop'],
    breaks: 'enough traffic',
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
  const parts = source.split(from)
  if (parts.length !== 2) throw new Error(`"${from}" is ${parts.length - 1} times in ${file}: the mutant has to be written anew`)
  await writeFile(path, parts.join(to))
  return `${new URL('./controls/mutant.mjs', import.meta.url).href}?of=${encodeURIComponent(pathToFileURL(folder).href)}`
}
