/**
 * Could these operations have happened one after the other? A history is linearizable if there is an order of them in which
 * each may answer as it did, and in which whatever had returned before another was called comes before it.
 *
 * The search is that of Wing and Gong with the cache of Lowe. Calls and returns stand in a list in the order of time. From its
 * front on, the first call that is legal in the state reached so far is taken out together with its return, and the walk begins
 * again at the front. At a return that is still there it has to go back: its operation should have happened by now. Two ways
 * that have taken the same operations and have led to the same state have the same future, so the second is not followed.
 *
 * An operation of unknown outcome has no return in the list: it may take effect at any time after its call, or never.
 *
 * Long histories are cut into windows. At a cut, all that returned before it has taken effect and nothing that is called after
 * it has. What is pending may have or not, and so may everything of unknown outcome. So all that the next window needs to know
 * is the set of points that can be reached: a state, and which of the pending ones have led to it. A window is searched for all
 * of them, and the next begins at each. Every order of the whole history goes through one of these points at every cut, and the
 * two halves of any two orders that meet at a point can be joined: cutting raises no false alarm, and misses nothing. It need
 * not wait for a moment at which nothing is pending, which on a contended key never comes.
 */

/** Times are of one clock. At the same time counts as concurrent. */
export interface Operation<Input, Output> {
  /** For people: the search does not need to know who did it. */
  readonly process: string
  readonly input: Input
  /** Means nothing if the outcome is unknown. */
  readonly output: Output | undefined
  readonly calledAt: bigint
  /** None: the outcome is unknown. */
  readonly returnedAt: bigint | undefined
}

/** What the operations are about, if they come one after the other. States are never changed, only replaced. */
export interface Model<State, Input, Output> {
  readonly initial: State
  /**
   * The state after it, or undefined if it cannot have answered so. If its outcome is unknown then `output` is undefined, and any
   * answer will do. What changes nothing gives the same state, so that it need not be tried where the outcome is unknown.
   */
  step(state: State, input: Input, output: Output | undefined): State | undefined
  /** The same for states that are the same. */
  keyOf(state: State): string

  // Both of these save time only. They may say no too often, but not yes.

  /** Whether it changes no state whatever: then it is best taken as soon as it is legal. */
  readonly readsOnly?: (input: Input, output: Output | undefined) => boolean
  /** Whether it is not legal any more, from this state on, whatever comes: then this state is a dead end. Known outcomes only. */
  readonly isTooLate?: (state: State, input: Input, output: Output | undefined) => boolean
}

/** A search that took too long has not found that all is well. */
export type Verdict<State, Input, Output> =
  | { readonly ok: true }
  | Stuck<State, Input, Output>
  | { readonly ok: false; readonly timedOut: true }

export interface Stuck<State, Input, Output> {
  readonly ok: false
  readonly timedOut: false
  /** The most that could be put in order, of the window in which it ends. */
  readonly longest: readonly Operation<Input, Output>[]
  /** What that led to. */
  readonly state: State
  /** Those of known outcome that would have to come next. None may, or one never will. */
  readonly stuckAt: readonly Operation<Input, Output>[]
}

export interface CheckOptions {
  readonly withinMs: number
  /** About how many operations are searched at once: it changes the time that it takes, and not the verdict. */
  readonly windowSize?: number
}

export function check<State, Input, Output>(
  operations: readonly Operation<Input, Output>[],
  model: Model<State, Input, Output>,
  { withinMs, windowSize = 250 }: CheckOptions,
): Verdict<State, Input, Output> {
  const deadline = performance.now() + withinMs
  const parts = windows(operations, windowSize)
  let cut: Cut<State, Input, Output> = { pending: [], points: [{ state: model.initial, taken: new Set() }] }
  for (const [index, { called, until }] of parts.entries()) {
    const search = new Search([...cut.pending, ...called], until, model, deadline)
    const ends = search.run(cut.points, index === parts.length - 1 ? 'one' : 'all')
    if (ends === 'timed out') return { ok: false, timedOut: true }
    if (ends.length === 0) return search.stuck!
    cut = cutAt(search.pending, ends)
  }
  return { ok: true }
}

export interface Window<Input, Output> {
  readonly called: readonly Operation<Input, Output>[]
  /** What has returned before that has taken effect in this window or an earlier one. None: it is the last. */
  readonly until: bigint | undefined
}

/**
 * Cuts a history into parts of at most `size` calls each, and at least half of that but for the last: where the fewest are
 * pending, of all the moments in between.
 */
export function windows<Input, Output>(operations: readonly Operation<Input, Output>[], size: number): Window<Input, Output>[] {
  const inOrder = [...operations].sort((a, b) => compare(a.calledAt, b.calledAt))
  const pending = pendingAtCalls(inOrder)
  const found: Window<Input, Output>[] = []
  for (let from = 0; from < inOrder.length;) {
    let to = Math.min(from + size, inOrder.length)
    if (to < inOrder.length) {
      for (let i = to - 1; i >= from + size / 2; i--) if (pending[i]! < pending[to]!) to = i
    }
    found.push({ called: inOrder.slice(from, to), until: inOrder[to]?.calledAt })
    from = to
  }
  return found
}

/** How many of known outcome are under way just before each call. */
function pendingAtCalls(inOrder: readonly Operation<unknown, unknown>[]): number[] {
  const returns = inOrder.flatMap(({ returnedAt }) => returnedAt ?? []).sort(compare)
  let called = 0
  let returned = 0
  return inOrder.map(({ calledAt, returnedAt }) => {
    while (returned < returns.length && returns[returned]! < calledAt) returned++
    const pending = called - returned
    if (returnedAt !== undefined) called++
    return pending
  })
}

/** Where a search can stand. Of what has taken effect, only those count that need not have. */
interface Point<State, Input, Output> {
  readonly state: State
  readonly taken: ReadonlySet<Operation<Input, Output>>
}

/** All that has to be known of what was before. */
interface Cut<State, Input, Output> {
  readonly pending: readonly Operation<Input, Output>[]
  readonly points: readonly Point<State, Input, Output>[]
}

/** What has taken effect at every point is left behind. */
function cutAt<State, Input, Output>(
  pending: readonly Operation<Input, Output>[],
  points: readonly Point<State, Input, Output>[],
): Cut<State, Input, Output> {
  return { pending: pending.filter((operation) => points.some(({ taken }) => !taken.has(operation))), points }
}

/** How often the clock is looked at: this many steps take well under a millisecond, unless the model is slow. */
const STEPS_PER_LOOK = 256

interface Step<State> {
  readonly index: number
  /** Before. */
  readonly state: State
  readonly readsOnly: boolean
}

/** Of one window. Operations go by their index in it. */
class Search<State, Input, Output> {
  /** How far it came, if it has ever had to go back. */
  stuck: Stuck<State, Input, Output> | undefined
  readonly #operations: readonly Operation<Input, Output>[]
  readonly #model: Model<State, Input, Output>
  readonly #deadline: number
  /** Whether it must have taken effect when the window ends. */
  readonly #isDue: readonly boolean[]
  readonly #timeline: Timeline
  readonly #taken: Bits
  readonly #seen = new Seen()
  readonly #ends: Point<State, Input, Output>[] = []
  /** What was taken, in that order. */
  readonly #way: Step<State>[] = []
  /** How many that are due are still to be taken. */
  #left: number
  #steps = 0

  constructor(
    operations: readonly Operation<Input, Output>[],
    until: bigint | undefined,
    model: Model<State, Input, Output>,
    deadline: number,
  ) {
    this.#operations = operations
    this.#model = model
    this.#deadline = deadline
    this.#isDue = operations.map(({ returnedAt }) => returnedAt !== undefined && (until === undefined || returnedAt < until))
    this.#left = this.#isDue.filter(Boolean).length
    this.#timeline = new Timeline(operations, this.#isDue)
    this.#taken = new Bits(operations.length)
  }

  /** What need not have taken effect when the window ends. */
  get pending(): Operation<Input, Output>[] {
    return this.#operations.filter((_, index) => !this.#isDue[index])
  }

  /** Where one can stand when all that is due is taken. None: nowhere, it is not linearizable. */
  run(starts: readonly Point<State, Input, Output>[], wanted: 'one' | 'all'): Point<State, Input, Output>[] | 'timed out' {
    for (const { state, taken } of starts) {
      const before = [...this.#operations.keys()].filter((index) => taken.has(this.#operations[index]!))
      for (const index of before) this.#take(index)
      if (!this.#follow(state, wanted)) return 'timed out'
      if (wanted === 'one' && this.#ends.length > 0) break
      for (const index of before.reverse()) this.#putBack(index)
    }
    return this.#ends
  }

  /** Every way from here that is not known yet. False if there was no time for it. */
  #follow(start: State, wanted: 'one' | 'all'): boolean {
    let state = start
    let node = this.#timeline.first
    if (!this.#isNew(state)) return true
    for (;;) {
      if (this.#steps++ % STEPS_PER_LOOK === 0 && performance.now() >= this.#deadline) return false
      if (this.#left > 0 && this.#timeline.isCall(node)) {
        const next = this.#stepTo(node, state)
        node = next === undefined ? this.#timeline.after(node) : this.#timeline.first
        state = next ?? state
        continue
      }
      // What is pending when all that is due is done can be left to the next window.
      if (this.#left === 0) {
        const taken = this.#operations.filter((_, index) => !this.#isDue[index] && this.#taken.has(index))
        this.#ends.push({ state, taken: new Set(taken) })
        if (wanted === 'one') return true
      } else {
        this.#noteIfFarthest(state)
      }
      // For one that only reads, no other time is better: all else is as it would be without it.
      let last = this.#stepBack()
      while (last?.readsOnly) last = this.#stepBack()
      if (!last) return true
      state = last.state
      node = this.#timeline.after(last.index)
    }
  }

  /** The state after it, if it may come next and leads to where nobody was. */
  #stepTo(index: number, state: State): State | undefined {
    const { input, output: answer, returnedAt } = this.#operations[index]!
    const isUnknown = returnedAt === undefined
    const output = isUnknown ? undefined : answer
    const next = this.#model.step(state, input, output)
    // If it changes nothing, then it may as well never happen.
    if (next === undefined || (isUnknown && next === state)) return undefined
    this.#take(index)
    this.#way.push({ index, state, readsOnly: this.#model.readsOnly?.(input, output) === true })
    if (this.#isNew(next) && !this.#isDeadEnd(next)) return next
    this.#stepBack()
    return undefined
  }

  #stepBack(): Step<State> | undefined {
    const last = this.#way.pop()
    if (last) this.#putBack(last.index)
    return last
  }

  /** One of those that may come next never will. */
  #isDeadEnd(state: State): boolean {
    const { isTooLate } = this.#model
    if (!isTooLate || !this.#front().some(({ input, output }) => isTooLate(state, input, output))) return false
    this.#noteIfFarthest(state)
    return true
  }

  /** Those of known outcome that may come next: they were called before anything returned that is still to be taken. */
  #front(): Operation<Input, Output>[] {
    const found: Operation<Input, Output>[] = []
    for (let node = this.#timeline.first; this.#timeline.isCall(node); node = this.#timeline.after(node)) {
      const operation = this.#operations[node]!
      if (operation.returnedAt !== undefined) found.push(operation)
    }
    return found
  }

  #isNew(state: State): boolean {
    return this.#seen.add(this.#taken, this.#model.keyOf(state))
  }

  #take(index: number): void {
    this.#taken.flip(index)
    this.#timeline.takeOut(index)
    if (this.#isDue[index]) this.#left--
  }

  #putBack(index: number): void {
    this.#taken.flip(index)
    this.#timeline.putBack(index)
    if (this.#isDue[index]) this.#left++
  }

  #noteIfFarthest(state: State): void {
    if (this.stuck && this.#way.length <= this.stuck.longest.length) return
    const longest = this.#way.map(({ index }) => this.#operations[index]!)
    this.stuck = { ok: false, timedOut: false, longest, state, stuckAt: this.#front() }
  }
}

/**
 * Calls, and the returns of those that are due, in the order of time: a doubly linked list, in which what was taken out last
 * finds its place again. Of n operations, node i is the call of the i-th, n + i its return, and 2n stands before the first and
 * after the last.
 */
class Timeline {
  readonly #isDue: readonly boolean[]
  readonly #count: number
  readonly #next: Int32Array
  readonly #previous: Int32Array

  constructor(operations: readonly Operation<unknown, unknown>[], isDue: readonly boolean[]) {
    const count = operations.length
    const at = (node: number): bigint => (node < count ? operations[node]!.calledAt : operations[node - count]!.returnedAt!)
    const calls = [...operations.keys()]
    const returns = calls.filter((index) => isDue[index]).map((index) => count + index)
    // At the same time calls come first: the operations are concurrent then.
    const nodes = [...calls, ...returns].sort((a, b) => compare(at(a), at(b)) || a - b)
    this.#isDue = isDue
    this.#count = count
    this.#next = new Int32Array(2 * count + 1)
    this.#previous = new Int32Array(2 * count + 1)
    let last = 2 * count
    for (const node of [...nodes, 2 * count]) {
      this.#next[last] = node
      this.#previous[node] = last
      last = node
    }
  }

  get first(): number {
    return this.#next[2 * this.#count]!
  }

  after(node: number): number {
    return this.#next[node]!
  }

  isCall(node: number): boolean {
    return node < this.#count
  }

  takeOut(index: number): void {
    this.#unlink(index)
    if (this.#isDue[index]) this.#unlink(this.#count + index)
  }

  putBack(index: number): void {
    if (this.#isDue[index]) this.#link(this.#count + index)
    this.#link(index)
  }

  #unlink(node: number): void {
    this.#next[this.#previous[node]!] = this.#next[node]!
    this.#previous[this.#next[node]!] = this.#previous[node]!
  }

  #link(node: number): void {
    this.#next[this.#previous[node]!] = node
    this.#previous[this.#next[node]!] = node
  }
}

/** A set of indices, with a hash that is kept up to date by one operation for each that comes or goes. */
class Bits {
  readonly words: Uint32Array
  hash = 0

  constructor(count: number) {
    this.words = new Uint32Array(Math.ceil(count / 32))
  }

  has(index: number): boolean {
    return (this.words[index >>> 5]! & (1 << (index & 31))) !== 0
  }

  flip(index: number): void {
    this.words[index >>> 5]! ^= 1 << (index & 31)
    this.hash ^= scrambled(index)
  }
}

interface Visit {
  readonly words: Uint32Array
  readonly state: string
  readonly other: Visit | undefined
}

/** Where the search has been: what was taken, and the state. Hashes only say where to look. */
class Seen {
  readonly #states = new Map<string, number>()
  readonly #visits = new Map<number, Visit>()

  /** False if it was there. */
  add({ words, hash }: Bits, state: string): boolean {
    const place = hash ^ scrambled(~this.#numberOf(state))
    const first = this.#visits.get(place)
    for (let visit = first; visit; visit = visit.other) if (visit.state === state && isEqual(visit.words, words)) return false
    this.#visits.set(place, { words: words.slice(), state, other: first })
    return true
  }

  #numberOf(state: string): number {
    const known = this.#states.get(state)
    if (known !== undefined) return known
    this.#states.set(state, this.#states.size)
    return this.#states.size - 1
  }
}

function isEqual(a: Uint32Array, b: Uint32Array): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false
  return true
}

/** 32 bits that look random, other ones for every number: the finalizer of MurmurHash3. */
function scrambled(number: number): number {
  let bits = Math.imul(number ^ (number >>> 16), 0x85ebca6b)
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35)
  return bits ^ (bits >>> 16)
}

function compare(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0
}
