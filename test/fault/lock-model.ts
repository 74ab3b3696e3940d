/**
 * A fenced lock as linearizability.ts sees it, and the history of one key as it follows from the log of a run.
 *
 * What a history has, and why:
 *
 *   acquire  → from `asked` to `granted`.
 *   release  → from `releasing` to `released`, with its answer.
 *   expire   → of unknown outcome, for every hold that may have ended otherwise than by a release that said so.
 *
 * Who was refused, cancelled, or killed while it asked is left out, though its claim may have held on the store for a moment.
 * Take a hold out of any legal order, its acquire with its end: the others find the lock free where it was free for them before,
 * each fence is still higher than those that are left before it, and each is still the holder where it was. So the order stays
 * legal, and to leave out a hold raises no false alarm. That also says that a history which is legal with a hold put in was
 * legal without it: to guess at holds that nobody has heard of would find nothing and excuse nothing.
 *
 * What this cannot find: a loss without a reason, as whoever says that it lost its hold is believed; a second holder beside one
 * that has lost its hold and was not `confirmed` since; and most of what goes wrong while the store may have forgotten.
 */
import { TURNS } from '../../src/core/hold.js'
import type { Event } from './history.js'
import type { Model, Operation } from './linearizability.js'

/** `op` is that of the log. */
export type LockInput =
  | { readonly type: 'acquire'; readonly op: string }
  | { readonly type: 'release' | 'expire'; readonly op: string; readonly fence: bigint }

/** The fence that was granted, or whether what was released was still held. */
export type LockOutput = bigint | boolean

export interface LockState {
  /** The highest that was granted. */
  readonly fence: bigint
  readonly holder: bigint | undefined
}

export type LockOperation = Operation<LockInput, LockOutput>

export const lockModel: Model<LockState, LockInput, LockOutput> = {
  initial: { fence: 0n, holder: undefined },

  step(state, input, output) {
    if (input.type === 'acquire') return acquired(state, output)
    const isHolder = state.holder === input.fence
    if (isHolder && output !== false) return { fence: state.fence, holder: undefined }
    return isHolder || output === true || input.type === 'expire' ? undefined : state
  },

  keyOf({ fence, holder }) {
    return `${fence} ${holder}`
  },

  readsOnly(input, output) {
    return input.type === 'release' && output === false
  },

  isTooLate({ fence, holder }, input, output) {
    if (input.type === 'acquire') return typeof output === 'bigint' && output <= fence
    return output === true && input.fence <= fence && input.fence !== holder
  },
}

function acquired(state: LockState, fence: LockOutput | undefined): LockState | undefined {
  // A hold that nobody has heard of makes no difference: see above.
  if (typeof fence !== 'bigint') return state
  return state.holder === undefined && fence > state.fence ? { fence, holder: fence } : undefined
}

/**
 * A hold that is under way while the store may forget can end unnoticed: from the beginning of such a fault until `settleMs` after it
 * was healed, which is no less than a TTL. Then nothing counts that its holder believes from
 * there on, and no release either: a store that was cut off may well agree to it. And a hold that is handed over in memory then
 * may come after a higher fence from elsewhere, so it is left out.
 *
 * It is taken for granted that a worker tells what it does in that order, with the time at which it did; that it lets
 * go of what it holds before it closes its manager; and that `forceRelease` is not used.
 */
export function lockHistory(events: readonly Event[], key: string, settleMs = 0): LockOperation[] {
  const doubts = doubtsOf(events, settleMs)
  const mayVanish = workersThatMayVanish(events)
  return storiesOf(events, key).flatMap((story) => operationsOf(story, doubts, mayVanish.has(story.worker)))
}

/** What the log tells of one `op`. */
interface Story {
  readonly op: string
  readonly worker: string
  readonly askedAt: bigint
  granted: { readonly at: bigint; readonly fence: bigint } | undefined
  readonly confirmedSince: bigint[]
  isLost: boolean
  readonly releasingAt: bigint[]
  readonly released: { readonly at: bigint; readonly ours: boolean | string }[]
}

function storiesOf(events: readonly Event[], key: string): Story[] {
  const stories = new Map<string, Story>()
  for (const event of events) {
    if (!('key' in event) || event.key !== key) continue
    if (event.type === 'asked') stories.set(event.op, newStory(event))
    else if (isTold(event)) tell(storyOf(stories, event.op), event)
    // From here on it is one story: the hold is the same.
    if (event.type === 'granted' && event.takesUp !== undefined) stories.set(event.op, storyOf(stories, event.takesUp))
  }
  return [...new Set(stories.values())]
}

const TOLD = ['granted', 'refused', 'confirmed', 'lost', 'left', 'releasing', 'released'] as const
type Told = Extract<Event, { type: (typeof TOLD)[number] }>

function isTold(event: Event): event is Told {
  return TOLD.some((type) => type === event.type)
}

function newStory({ op, worker, at }: { readonly op: string; readonly worker: string; readonly at: bigint }): Story {
  return { op, worker, askedAt: at, granted: undefined, confirmedSince: [], isLost: false, releasingAt: [], released: [] }
}

function storyOf(stories: ReadonlyMap<string, Story>, op: string): Story {
  const story = stories.get(op)
  if (!story) throw new Error(`The log tells of ${op} before it has asked`)
  return story
}

function tell(story: Story, event: Told): void {
  if (event.type === 'granted') story.granted = event
  else if (event.type === 'confirmed') story.confirmedSince.push(event.since)
  else if (event.type === 'lost' || event.type === 'left') story.isLost = true
  else if (event.type === 'releasing') story.releasingAt.push(event.at)
  else if (event.type === 'released' && story.released.push(event) > story.releasingAt.length) {
    throw new Error(`The log tells that ${story.op} was released before it was to be`)
  }
}

interface Period {
  readonly from: bigint
  /** None: it never ended. */
  readonly to: bigint | undefined
}

/** When the store may have forgotten. */
function doubtsOf(events: readonly Event[], settleMs: number): Period[] {
  const healedAt = new Map(events.flatMap((event) => (event.type === 'healed' ? [[event.fault, event.at] as const] : [])))
  return events.flatMap((event) => {
    if (event.type !== 'fault' || event.forgets !== true) return []
    const to = healedAt.get(event.fault)
    const forMs = event.forgetsForMs ?? settleMs
    return { from: event.at, to: to === undefined ? undefined : to + BigInt(Math.ceil(forMs * 1e6)) }
  })
}

/** Those that ended, or were stopped: what they still held may be free without a word of theirs. */
function workersThatMayVanish(events: readonly Event[]): Set<string> {
  return new Set(
    events.flatMap((event) => (event.type === 'ended' ? event.worker : event.type === 'fault' ? event.target.split(' ') : [])),
  )
}

function operationsOf(story: Story, doubts: readonly Period[], mayVanish: boolean): LockOperation[] {
  const { op, worker, askedAt, granted } = story
  if (!granted) return []
  const { fence } = granted
  const doubtedFrom = firstDoubt(story, doubts)
  if (doubtedFrom !== undefined && granted.at >= doubtedFrom && fence % BigInt(TURNS) !== 0n) return []
  const found: LockOperation[] = [
    { process: worker, input: { type: 'acquire', op }, output: fence, calledAt: askedAt, returnedAt: granted.at },
  ]
  for (const [index, { at, ours }] of story.released.entries()) {
    if (!isTelling(story, index, doubtedFrom)) continue
    const calledAt = story.releasingAt[index]!
    found.push({ process: worker, input: { type: 'release', op, fence }, output: ours as boolean, calledAt, returnedAt: at })
  }
  if (mayExpire(story, doubtedFrom, mayVanish)) {
    const calledAt = heldUntil(story, doubtedFrom)
    found.push({ process: worker, input: { type: 'expire', op, fence }, output: undefined, calledAt, returnedAt: undefined })
  }
  return found
}

/** The start of the first period of doubt in which it may have been held. */
function firstDoubt({ askedAt, released }: Story, doubts: readonly Period[]): bigint | undefined {
  const endedAt = released.find(({ ours }) => ours === true)?.at
  return doubts
    .filter(({ from, to }) => (to === undefined || to >= askedAt) && (endedAt === undefined || endedAt >= from))
    .map(({ from }) => from)
    .reduce<bigint | undefined>((first, from) => (first === undefined || from < first ? from : first), undefined)
}

/** Whether that answer to a release says what the store had. */
function isTelling({ released }: Story, index: number, doubtedFrom: bigint | undefined): boolean {
  const { ours } = released[index]!
  if (typeof ours === 'string') return false
  // After one that failed, `true` says only that nobody else had it when that was sent.
  const isRepeated = released.slice(0, index).some((earlier) => typeof earlier.ours === 'string')
  return ours === false || (doubtedFrom === undefined && !isRepeated)
}

/** Whether it may have ended otherwise than by a release that said so. */
function mayExpire({ isLost, releasingAt, released }: Story, doubtedFrom: bigint | undefined, mayVanish: boolean): boolean {
  if (isLost || doubtedFrom !== undefined) return true
  return releasingAt.length > 0 ? released[0]?.ours !== true : mayVanish
}

/**
 * It was held until then for certain: its handle said so. A grant alone does not say that, as it may have expired on the store
 * before a process that was stopped came to hear of it. A release that failed says it, as one that was not held any more is
 * answered `false` without asking the store.
 */
function heldUntil({ askedAt, confirmedSince, isLost, releasingAt, released }: Story, doubtedFrom: bigint | undefined): bigint {
  const heldAt = !isLost && typeof released[0]?.ours === 'string' ? [...confirmedSince, releasingAt[0]!] : confirmedSince
  const beyondDoubt = heldAt.filter((at) => doubtedFrom === undefined || at < doubtedFrom)
  return beyondDoubt.reduce((last, at) => (at > last ? at : last), askedAt)
}
