import { describe, expect, it } from 'vitest'
import type { Event, Workload } from '../fault/history.js'
import { validate } from '../fault/validate.js'

const TTL_MS = 1_000
const ms = (at: number) => BigInt(Math.round(at * 1e6))

/** A log by hand: enough traffic beside whatever a test is about, so that nothing else is wrong with it. */
class Log {
  readonly events: Event[] = []
  #fence = 0n

  constructor() {
    this.phase('warm-up', 0).phase('faults', 2_000).phase('recovery', 20_000).phase('end', 30_000)
    for (let i = 0; i < 400; i++) this.hold(`traffic-${i}`, { key: 'traffic', from: i * 4, to: i * 4 + 2 })
  }

  phase(name: 'warm-up' | 'faults' | 'recovery' | 'end', at: number): this {
    this.events.push({ type: 'phase', at: ms(at), name })
    return this
  }

  ask(op: string, { key = 'k', at, worker = op, workload = 'fenced' as Workload }: { key?: string; at: number; worker?: string; workload?: Workload }): this {
    this.events.push({ type: 'asked', at: ms(at), worker, op, key, workload })
    return this
  }

  /** Asked for, had, confirmed in the end and released. */
  hold(
    op: string,
    { key = 'k', asked, from, to, fence, late, worker = op, workload = 'fenced' as Workload }: {
      key?: string; asked?: number; from: number; to?: number; fence?: bigint; late?: boolean; worker?: string; workload?: Workload
    },
  ): this {
    this.ask(op, { key, at: asked ?? from - 0.5, worker, workload })
    this.events.push({ type: 'granted', at: ms(from), worker, op, key, fence: fence ?? ++this.#fence, ...(late && { late }) })
    if (to === undefined) return this
    this.events.push({ type: 'confirmed', at: ms(to), since: ms(to), worker, op, key })
    this.events.push({ type: 'releasing', at: ms(to), worker, op, key })
    return this
  }

  fault(name: string, from: number, to: number, forgets = false, forgetsForMs?: number): this {
    const fault = this.events.length
    this.events.push({ type: 'fault', at: ms(from), fault, name, target: 'a x', forgets, forgetsForMs })
    this.events.push({ type: 'healed', at: ms(to), fault, name })
    return this
  }

  add(event: Event): this {
    this.events.push(event)
    return this
  }

  verdict(of: Partial<Parameters<typeof validate>[0]> = {}): string[] {
    return [...new Set(validate({ ttlMs: TTL_MS, events: this.events, ...of }).map(({ invariant }) => invariant))]
  }
}

describe('the judges', () => {
  it('find nothing in a log that is in order', () => {
    expect(new Log().hold('a', { from: 3_000, to: 3_010 }).hold('b', { from: 3_011, to: 3_020 }).verdict()).toEqual([])
  })

  it('one holder: not while a later one already has it', () => {
    const log = () => new Log().hold('a', { from: 3_000, to: 3_010 }).hold('b', { from: 3_005, to: 3_020 })
    expect(log().verdict()).toEqual(['one holder', 'linearizable'])
    expect(log().fault('client stop', 2_900, 3_100).verdict()).toEqual(['one holder', 'linearizable'])
    expect(log().fault('FLUSHALL', 2_900, 3_003, true).verdict()).toEqual([])
  })

  it('one holder: one who was stopped, and does not say so any more, is none', () => {
    expect(new Log().hold('a', { from: 3_000 }).fault('client stop', 3_001, 4_500).hold('b', { from: 4_200, to: 4_210 }).verdict()).toEqual([])
  })

  it('loss in time: not for longer than a TTL after it was cut off, also if nobody else is given it', () => {
    const held = (until: number, { target = 'a', forgets = false, workers = 'a' } = {}) => {
      const log = new Log().hold('a', { from: 3_000, to: until, worker: workers })
      log.add({ type: 'fault', at: ms(3_050), fault: 0, name: 'partition', target, cutsOffSince: ms(3_100), forgets })
      return log.add({ type: 'healed', at: ms(5_050), fault: 0, name: 'partition', since: ms(5_000) }).verdict()
    }
    expect(held(4_090)).toEqual([])
    expect(held(4_110)).toEqual(['loss in time'])
    // The server itself is away, and so it is everybody's.
    expect(held(4_110, { target: '6379' })).toEqual(['loss in time'])
    expect(held(4_110, { target: 'traffic-1' })).toEqual([])
    expect(held(4_110, { forgets: true })).toEqual([])
    // By then it may have been renewed.
    expect(held(5_010)).toEqual([])
  })

  it('fence order, again as soon as everybody has heard of what the store has forgotten', () => {
    const log = (at: number) =>
      new Log().hold('a', { from: 3_000, to: 3_010, fence: 1_000n }).fault('FLUSHALL', 3_100, 3_200, true).hold('b', { from: at, to: at + 1, fence: 999n })
    expect(log(8_000).verdict()).toEqual([])
    expect(log(8_300).verdict()).toContain('fence order')
  })

  it('fence order', () => {
    const log = new Log().hold('a', { from: 3_000, to: 3_010, fence: 1_000n }).hold('b', { from: 3_020, to: 3_030, fence: 999n })
    expect(log.verdict()).toEqual(['fence order', 'linearizable'])
    const late = new Log().hold('a', { from: 3_000, to: 3_010, fence: 9n }).hold('b', { asked: 2_990, from: 3_020, fence: 8n, late: true })
    late.fault('client stop', 2_990, 3_020)
    expect(late.add({ type: 'lost', at: ms(3_020), worker: 'b', op: 'b', key: 'k', error: 'OwnershipLostError' }).verdict()).toEqual([])
  })

  it('unique fences, whatever the store forgets', () => {
    const log = new Log().hold('a', { from: 3_000, to: 3_010, fence: 7n }).hold('b', { from: 3_020, to: 3_030, fence: 7n })
    expect(log.fault('FLUSHALL', 2_900, 3_015, true).verdict()).toEqual(['unique fences'])
  })

  it('fences go on growing when all is healed', () => {
    const log = new Log().hold('a', { from: 19_000, to: 19_010, fence: 9_000n }).fault('FLUSHALL', 19_100, 19_200, true)
    expect(log.hold('b', { from: 26_000, to: 26_010, fence: 8_000n }).verdict()).toContain('fences go on growing')
  })

  it('no lost update past the fence', () => {
    const wrote = (workload: Workload) =>
      new Log().hold('a', { from: 3_000, to: 3_010, workload }).add({
        type: 'wrote', at: ms(3_005), op: 'a', key: 'k', fence: 401n, accepted: true, value: 2, lostUpdate: true,
      })
    expect(wrote('fenced').verdict()).toEqual(['no lost update'])
    expect(wrote('unfenced').verdict()).toEqual([])
  })

  it('accepted fences: none after a higher one, and none of two', () => {
    const visits = (...all: ['read' | 'wrote', string, bigint][]) => {
      const log = new Log().hold('a', { from: 3_000, to: 3_010, fence: 500n }).hold('b', { from: 3_020, to: 3_030, fence: 501n })
      for (const [i, [type, op, fence]] of all.entries()) {
        const visit = { at: ms(3_040 + i), op, key: 'k', fence, accepted: true, value: 0 }
        log.add(type === 'read' ? { type, ...visit } : { type, ...visit, lostUpdate: false })
      }
      return log.verdict()
    }
    expect(visits(['read', 'a', 500n], ['wrote', 'a', 500n], ['read', 'b', 501n])).toEqual([])
    expect(visits(['read', 'a', 500n], ['read', 'b', 501n], ['wrote', 'a', 500n])).toEqual(['accepted fences'])
    expect(visits(['read', 'a', 501n], ['read', 'b', 501n])).toEqual(['accepted fences'])
  })

  it('crash hand-off: the time in which the machine is too slow comes on top, and the dead do not wait', () => {
    const killed = () =>
      new Log()
        .hold('a', { from: 3_000, worker: 'w' })
        .add({ type: 'ended', at: ms(3_010), worker: 'w', how: 'killed' })
        .fault('client kill', 3_010, 4_000)
    const stalled = (since: number, at: number) => killed().add({ type: 'stalled', since: ms(since), at: ms(at), worker: 'b' })
    const next = (log: Log, from: number) => log.hold('b', { asked: 3_001, from, to: from + 1 }).verdict()
    expect(next(stalled(3_500, 4_000), 5_400)).toEqual([])
    expect(next(stalled(3_500, 4_000), 5_600)).toEqual(['crash hand-off'])
    expect(killed().ask('other', { at: 3_001, worker: 'w' }).hold('b', { from: 6_000, to: 6_001 }).verdict()).toEqual([])
  })

  it('crash hand-off: within a TTL and a second, if somebody waits', () => {
    const killed = (nextAt: number) =>
      new Log()
        .hold('a', { from: 3_000, worker: 'w' })
        .add({ type: 'ended', at: ms(3_010), worker: 'w', how: 'killed' })
        .fault('client kill', 3_010, 5_000)
        .hold('b', { asked: 3_001, from: nextAt, to: nextAt + 1 })
    expect(killed(4_900).verdict()).toEqual([])
    expect(killed(5_200).verdict()).toEqual(['crash hand-off'])
    expect(killed(5_200).fault('server stop', 4_000, 5_100).verdict()).toEqual([])
    expect(killed(5_900).verdict({ handOffMs: 2_000 })).toEqual([])
    expect(killed(6_100).verdict({ handOffMs: 2_000 })).toEqual(['crash hand-off'])
  })

  it('loss in time: who was forgotten says so within a TTL, where the store forgets as one', () => {
    const overtaken = (until: number) =>
      new Log()
        .hold('a', { from: 3_000, to: until, fence: 10_001n })
        .hold('b', { from: 3_500, to: 5_000, fence: 10_003n })
        // In the process of the first, which does not know yet.
        .hold('c', { from: 3_600, to: 3_601, fence: 10_002n })
        .fault('claims deleted', 3_400, 3_450, true)
    expect(overtaken(4_400).verdict({ forgetsAsOne: true })).toEqual([])
    expect(overtaken(4_600).verdict({ forgetsAsOne: true })).toEqual(['loss in time'])
    expect(overtaken(4_600).verdict()).toEqual([])
  })

  it('crash hand-off: one that was killed while it waited is passed over first', () => {
    const killed = (nextAt: number) =>
      new Log()
        .hold('a', { from: 3_000, worker: 'w' })
        .ask('also', { at: 3_000, worker: 'v' })
        .add({ type: 'ended', at: ms(3_009), worker: 'v', how: 'killed' })
        .add({ type: 'ended', at: ms(3_010), worker: 'w', how: 'killed' })
        .fault('client kill', 3_009, 5_000)
        .hold('b', { asked: 3_001, from: nextAt, to: nextAt + 1 })
    expect(killed(6_900).verdict()).toEqual([])
    expect(killed(7_200).verdict()).toEqual(['crash hand-off'])
  })

  it('nobody stuck: what is broken does not count', () => {
    expect(new Log().hold('a', { asked: 3_000, from: 14_000, to: 14_001 }).verdict()).toEqual(['nobody stuck'])
    expect(new Log().hold('a', { asked: 3_000, from: 14_000, to: 14_001 }).fault('server stop', 5_000, 9_000).verdict()).toEqual([])
    expect(new Log().ask('a', { at: 15_000 }).verdict()).toEqual(['nobody stuck'])
  })

  it('nothing lost while nothing is broken', () => {
    const lost = () => new Log().hold('a', { from: 3_000 }).add({ type: 'lost', at: ms(4_000), worker: 'a', op: 'a', key: 'k', error: 'OwnershipLostError' })
    expect(lost().verdict()).toEqual(['nothing lost'])
    expect(lost().fault('partition', 2_500, 3_500).verdict()).toEqual([])
    const late = () => new Log().hold('a', { from: 9_600 }).add({ type: 'lost', at: ms(9_700), worker: 'a', op: 'a', key: 'k', error: 'OwnershipLostError' })
    expect(late().fault('leader stop', 2_500, 4_500, true, 5_200).verdict()).toEqual([])
    expect(late().fault('leader stop', 2_500, 4_500, true).verdict()).toEqual(['nothing lost'])
    const stalled = (worker: string) => lost().add({ type: 'stalled', at: ms(3_500), since: ms(2_500), worker })
    expect(stalled('a').verdict()).toEqual([])
    expect(lost().add({ type: 'stalled', at: ms(3_500), since: ms(2_500), what: 'the store' }).verdict()).toEqual([])
    expect(stalled('traffic-1').verdict()).toEqual(['nothing lost'])
    const partition = (target: string) => lost().add({ type: 'fault', at: ms(2_500), fault: 0, name: 'partition', target })
    expect(partition('traffic-1 a').verdict()).toEqual([])
    expect(partition('traffic-1').verdict()).toEqual(['nothing lost'])
  })

  it('first come, first served, before the first fault', () => {
    const log = new Log()
    for (let i = 0; i < 20; i++) log.hold(`f${i}`, { key: 'fifo', asked: 1_700 - i * 10, from: 1_700 + i * 10, to: 1_701 + i * 10, workload: 'fifo' })
    expect(log.verdict()).toEqual(['first come, first served'])
    const one = (i: number) => ({ key: 'fifo', from: 1_500 + i * 10, to: 1_501 + i * 10, workload: 'fifo' as const })
    const slow = new Log()
    for (let i = 0; i < 15; i++) slow.hold(`f${i}`, { asked: 1_200 + i - (i === 10 ? 90 : 0), ...one(i) })
    expect(slow.verdict()).toEqual([])
  })

  it('replicated grants, where they are promised', () => {
    const log = () => new Log().hold('a', { from: 3_500, to: 3_510 }).fault('replicas stop', 3_000, 4_000)
    expect(log().verdict({ waitsForReplicas: true })).toEqual(['replicated grants'])
    expect(log().verdict()).toEqual([])
  })

  it('enough traffic, and nobody dies', () => {
    expect(new Log().add({ type: 'ended', at: ms(3_000), worker: 'w', how: 'failed', why: 'rejection' }).verdict()).toEqual(['nobody dies'])
    const idle = new Log()
    idle.events.splice(4)
    expect(idle.verdict()).toEqual(['enough traffic'])
  })
})

describe('the judges of sessions', () => {
  const granted = (op: string, at: number, fence: bigint, more = {}): Event => ({ type: 'granted', at: ms(at), worker: op, op, key: 'k', fence, ...more })
  const left = (op: string, at: number): Event => ({ type: 'left', at: ms(at), worker: op, op, key: 'k' })

  it('let who takes something up have its fence, if it was left', () => {
    const log = (isLeft: boolean, takesUp: string | undefined) => {
      const one = new Log().ask('a', { at: 3_000 }).add(granted('a', 3_001, 7n))
      if (isLeft) one.add(left('a', 3_010))
      one.ask('b', { at: 3_020 }).add(granted('b', 3_021, 7n, takesUp && { takesUp }))
      return one.add({ type: 'confirmed', at: ms(3_030), since: ms(3_030), worker: 'b', op: 'b', key: 'k' }).verdict()
    }
    expect(log(true, 'a')).toEqual([])
    expect(log(true, undefined)).toEqual(['fence order', 'unique fences', 'linearizable'])
    expect(log(false, 'a')).toEqual(['fence order', 'unique fences'])
  })

  it('let it be held for longer than a TTL after it was taken up, where the store forgets as one', () => {
    const log = (next: bigint) => new Log().ask('a', { at: 3_000 }).add(granted('a', 3_001, 7n)).add(left('a', 3_010))
      .ask('b', { at: 4_100 }).add(granted('b', 4_101, 7n, { takesUp: 'a' }))
      .ask('c', { at: 4_102 }).add(granted('c', 4_103, next))
      .add({ type: 'confirmed', at: ms(5_200), since: ms(5_200), worker: 'b', op: 'b', key: 'k' })
      .fault('claims deleted', 4_050, 4_060, true).verdict({ forgetsAsOne: true })
    expect(log(6n)).not.toContain('loss in time')
    expect(log(8n)).toContain('loss in time')
  })

  it('sessions end: nobody holds in the name of one that was orphaned', () => {
    const log = (since: number) => new Log().ask('a', { at: 3_000 }).add(granted('a', 3_001, 7n)).add(left('a', 3_010))
      .add({ type: 'confirmed', at: ms(3_020), since: ms(since), worker: 'a', op: 'a', key: 'k' }).verdict()
    expect(log(3_009)).toEqual([])
    expect(log(3_011)).toEqual(['sessions end'])
  })

  it('one leader per term, whoever says so', () => {
    const log = (rev: bigint, by: string) => new Log().ask('a', { at: 3_000 }).add(granted('a', 3_001, 7n, { rev: 7n }))
      .add({ type: 'saying', at: ms(3_002), worker: by, op: by, key: 'k', n: 0 })
      .add({ type: 'observed', at: ms(3_100), worker: 'x', observer: 'x/0', key: 'k', by, n: 0, rev, revision: 1n }).verdict()
    expect(log(7n, 'a')).toEqual([])
    expect(log(8n, 'b')).toEqual([])
    expect(log(7n, 'b')).toEqual(['one leader per term'])
  })

  it('observers hear what was said, in order, and keep up', () => {
    const word = (type: 'saying' | 'said', n: number, at: number): Event => ({ type, at: ms(at), worker: 'a', op: 'a', key: 'k', n })
    const heard = (n: number, at: number): Event =>
      ({ type: 'observed', at: ms(at), worker: 'x', observer: 'x/0', key: 'k', by: 'a', n, rev: 7n, revision: BigInt(Math.round(at)) })
    const log = (...words: readonly number[]) => {
      const one = new Log().add({ type: 'began', at: ms(0), worker: 'x' }).ask('a', { at: 6_000 }).add(granted('a', 6_001, 7n, { rev: 7n }))
      for (const n of [0, 1]) one.add(word('saying', n, 6_002 + n)).add(word('said', n, 6_003 + n))
      words.forEach((n, i) => one.add(heard(n, 6_010 + i)))
      return one.verdict()
    }
    expect(log(0, 1)).toEqual([])
    expect(log(1)).toEqual([])
    expect(log(0)).toEqual(['observers keep up'])
    expect(log()).toEqual(['observers keep up'])
    expect(log(1, 0)).toEqual(['observers in order', 'observers keep up'])
    expect(log(0, 1, 1)).toEqual(['observers in order'])
    expect(log(0, 1, 2)).toEqual(['observers in order'])
  })
})

describe('the judge of transactions', () => {
  type Reads = readonly (readonly [string, string, bigint])[]
  const trying = (tx: string, at: number, reads: Reads, writes: readonly (readonly [string, string])[], generation = 0): Event =>
    ({ type: 'trying', at: ms(at), worker: 'w', tx, dealing: 'duties', generation, reads, writes })
  const committed = (tx: string, at: number, revision: bigint): Event => ({ type: 'committed', at: ms(at), worker: 'w', tx, revision, tries: 1 })
  const begin = (generation = 0) => new Log()
    .add(trying('t0', 3_000, [['a', '', 0n], ['b', '', 0n]], [['a', '1#t0'], ['b', '1#t0']], generation)).add(committed('t0', 3_001, 5n))
  const skew = (log: Log, generation = 0) => log
    .add(trying('t1', 3_010, [['a', '1#t0', 5n], ['b', '1#t0', 5n]], [['a', '0#t1']], generation)).add(committed('t1', 3_020, 6n))
    .add(trying('t2', 3_010, [['a', '1#t0', 5n], ['b', '1#t0', 5n]], [['b', '0#t2']], generation)).add(committed('t2', 3_020, 7n))

  it('finds what could not have come one after the other, unless the store has lost it', () => {
    expect(begin().verdict()).toEqual([])
    expect(skew(begin()).verdict()).toEqual(['serializable'])
    expect(skew(begin(1), 1).verdict()).toEqual([])
    // It was answered when the store had already lost something.
    expect(skew(begin()).add({ type: 'generation', at: ms(3_015), generation: 1 }).verdict()).toEqual([])
  })

  it('has one of unknown outcome happen when somebody has read what it wrote, and only then', () => {
    const log = (...reads: Reads) => begin()
      .add(trying('t1', 3_010, [['a', '1#t0', 5n], ['b', '1#t0', 5n]], [['a', '0#t1']]))
      .add({ type: 'uncommitted', at: ms(3_020), worker: 'w', tx: 't1', error: 'BackendError' })
      .add(trying('t2', 3_030, reads, [])).add(committed('t2', 3_031, 8n)).verdict()
    expect(log(['a', '1#t0', 5n])).toEqual([])
    expect(log(['a', '0#t1', 6n], ['b', '1#t0', 5n])).toEqual([])
    expect(log(['a', '0#t9', 6n])).toEqual(['serializable'])
    expect(log(['b', '1#t0', 4n])).toEqual(['serializable'])
  })

  it('finds a revision that was given twice', () => {
    const log = (revision: bigint) => begin().add(trying('t1', 3_010, [['a', '1#t0', 5n]], [['a', '1#t1']])).add(committed('t1', 3_020, revision)).verdict()
    expect(log(6n)).toEqual([])
    expect(log(5n)).toEqual(['serializable'])
  })
})
