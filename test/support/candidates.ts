/** Child processes that campaign, for tests that kill leaders. See candidate.mjs for the other side. */
import { fileURLToPath } from 'node:url'
import { Child } from './child.js'
import { until } from './until.js'

export interface CandidateEvent {
  readonly type: 'candidate' | 'elected' | 'tick' | 'lost' | 'failed'
  readonly pid: number
  readonly at: bigint
  readonly rev?: bigint
  readonly fence?: bigint
  readonly error?: string
}

const SCRIPT = fileURLToPath(new URL('./candidate.mjs', import.meta.url))
const LIBRARY = new URL('../../dist/index.js', import.meta.url).href
const TICK_MS = 25

class Candidate extends Child<object, CandidateEvent> {
  readonly events: CandidateEvent[] = []
  readonly #heard: (event: CandidateEvent) => void

  constructor(setup: object, heard: (event: CandidateEvent) => void) {
    super({ script: SCRIPT, env: { HOLDFAST_CANDIDATE: JSON.stringify(setup) } })
    this.#heard = heard
  }

  protected heard(event: CandidateEvent): void {
    this.events.push(event)
    this.#heard(event)
  }

  protected ended(): void {}

  get term(): CandidateEvent | undefined {
    const last = this.events.findLast(({ type }) => type === 'elected' || type === 'lost')
    return last?.type === 'elected' ? last : undefined
  }
}

/** Those who campaign for one election, and what they have said. */
export class Candidates {
  readonly log: CandidateEvent[] = []
  readonly #setup: object
  readonly #alive = new Set<Candidate>()

  constructor(url: string, { name, ttlMs }: { readonly name: string; readonly ttlMs: number }) {
    this.#setup = { url, prefix: 'test', library: LIBRARY, name, ttlMs, everyMs: TICK_MS }
  }

  /** Resolves when it campaigns. */
  async add(): Promise<void> {
    const candidate = new Candidate(this.#setup, (event) => this.log.push(event))
    this.#alive.add(candidate)
    await candidate.ready()
    await until('it to campaign', async () => candidate.events.length > 0)
  }

  /** The leader of a term that is not over. */
  async leader(after = 0n): Promise<CandidateEvent> {
    let term: CandidateEvent | undefined
    await until(`a leader after ${after}`, async () => {
      term = this.#terms.find(({ rev }) => rev! > after)
      return term !== undefined
    })
    return term!
  }

  get #terms(): CandidateEvent[] {
    return [...this.#alive].flatMap(({ term }) => term ?? [])
  }

  /** SIGKILL, and nothing else. */
  async kill({ pid }: CandidateEvent): Promise<void> {
    const candidate = [...this.#alive].find((one) => one.pid === pid)!
    await candidate.kill()
    this.#alive.delete(candidate)
  }

  /** Also of those who are just beginning. */
  async end(): Promise<void> {
    await Promise.all([...this.#alive].map((candidate) => candidate.kill()))
    this.#alive.clear()
  }
}

/**
 * What is wrong with what leaders said, in the order of the machine's clock: each term has one leader, revisions and fences grow, and
 * nobody says that it leads after a later one has. A resource that checks fences would have refused that.
 */
export function faultsOf(log: readonly CandidateEvent[]): string[] {
  const faults: string[] = []
  const leaders = new Map<bigint, number>()
  const inOrder = log.filter(({ rev }) => rev !== undefined).sort((a, b) => (a.at < b.at ? -1 : 1))
  let highest = { rev: 0n, fence: 0n }
  for (const { type, pid, rev = 0n, fence = 0n } of inOrder) {
    const leader = leaders.get(rev)
    if (leader !== undefined && leader !== pid) faults.push(`two leaders in term ${rev}: ${leader} and ${pid}`)
    leaders.set(rev, pid)
    if (type === 'lost') continue
    if (rev < highest.rev || fence < highest.fence) faults.push(`${type} of ${pid} in term ${rev}, fence ${fence}, after ${highest.rev}, ${highest.fence}`)
    else highest = { rev, fence }
  }
  return faults
}
