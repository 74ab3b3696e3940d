/** Reports of runs that are known, as they are made up. */
import { describe, expect, test } from 'vitest'
import type { Run } from '../fault/history.js'
import { lanes } from '../fault/report/lanes.js'
import { logOf } from '../fault/report/log.js'
import { chosen, sceneOf, type Scene } from '../fault/report/scene.js'
import { verdictOf } from '../fault/report/summary.js'
import { timelineOf } from '../fault/report/timeline.js'
import { htmlReport, markdownSummary, progressLine, summaryOf, withSummary } from '../fault/report.js'
import type { Progress, Summary } from '../fault/report.js'
import { at, doubleHold, goodRun, hostileRun, MadeUpLog, simulatedRun } from '../support/made-up-runs.js'
import { wellFormed, type Element } from '../support/well-formed.js'

const emptyRun: Run = { backend: 'memory', seed: 1, ttlMs: 1_000, events: [], violations: [] }

const sceneIn = (run: Run, index = 0): Scene => sceneOf(timelineOf(run), run.violations[index]!)

const ofClass = (elements: readonly Element[], kind: string): Element[] =>
  elements.filter(({ attributes }) => attributes.get('class')?.split(' ').includes(kind))

const textsIn = (elements: readonly Element[]): string[] =>
  elements.filter(({ name }) => name === 'text').map(({ text }) => text)

const marksIn = (elements: readonly Element[]): (string | undefined)[] =>
  elements.filter(({ name }) => name === 'use').map(({ attributes }) => attributes.get('href'))

describe('the numbers', () => {
  test('of a run in which nothing went wrong', () => {
    expect(summaryOf(goodRun())).toEqual({
      backend: 'redis',
      seed: 7,
      ttlMs: 1_000,
      startedAt: String(at(0)),
      durationMs: 10_000,
      workers: 2,
      operations: 42,
      grants: 41,
      losses: 0,
      refusals: 1,
      faults: [
        { name: 'kill', count: 1, ms: 0 },
        { name: 'partition', count: 1, ms: 1_500 },
      ],
      before: { ms: 4_000, grants: 32, perS: 8 },
      during: { ms: 4_000, grants: 1, perS: 0.25 },
      after: { ms: 2_000, grants: 8, perS: 4 },
      longestRecoveryMs: 400,
      lostUpdates: 1,
      gateRefusals: 0,
      highestFence: '50',
      violations: 0,
      guarantees: [],
    } satisfies Summary)
  })

  test('do not depend on the order of the log', () => {
    const run = goodRun()
    expect(summaryOf({ ...run, events: run.events.toReversed() })).toEqual(summaryOf(run))
  })

  test('survive JSON', () => {
    for (const run of [goodRun(), doubleHold(), hostileRun(), emptyRun]) {
      expect(JSON.parse(JSON.stringify(summaryOf(run)))).toEqual(summaryOf(run))
    }
  })

  test('of a log without phases go by its faults', () => {
    const log = new MadeUpLog().fault(1, 'partition', 'w', 1_000, 2_000)
    for (let n = 0; n < 30; n++) {
      const granted = n * 100
      log.hold({ op: `${n}`, worker: 'w', fence: BigInt(n), asked: granted, granted, until: granted + 99.5 })
    }
    const { before, during, after } = summaryOf(log.run())
    expect([before, during, after].map(({ ms, grants }) => [ms, grants])).toEqual([[1_000, 10], [1_000, 10], [1_000, 10]])
  })

  test('a wait counts as recovery only while nothing is broken', () => {
    const log = new MadeUpLog().fault(1, 'x', 'w', 100, 200).fault(2, 'y', 'w', 150, 300).fault(3, 'x', 'w', 350, 1_000)
    log.hold({ op: 'a', worker: 'w', fence: 1n, asked: 120, granted: 1_030, until: 1_100 })
    expect(summaryOf(log.run()).longestRecoveryMs).toBe(50)
    log.hold({ op: 'b', worker: 'w', fence: 2n, asked: 1_050, granted: 1_110, until: 1_200 })
    expect(summaryOf(log.run()).longestRecoveryMs).toBe(60)
  })

  test('one that is told twice of its loss, and releases, lost once; the gate refused two', () => {
    const log = new MadeUpLog().hold({ op: 'a', worker: 'w', fence: 1n, asked: 0, granted: 1, until: 9 })
    for (const ms of [5, 6]) log.add({ type: 'lost', at: at(ms), worker: 'w', op: 'a', key: 'k', error: 'gone' })
    for (const ms of [7, 8]) log.add({ type: 'read', at: at(ms), op: 'a', key: 'k', fence: 1n, accepted: false, value: 0 })
    expect(summaryOf(log.run())).toMatchObject({ grants: 1, losses: 1, gateRefusals: 2 })
    expect(timelineOf(log.run()).operations.get('a')).toMatchObject({ endMs: 5, ending: 'lost', why: 'gone' })
  })

  test('who is killed neither waits nor holds any longer', () => {
    const log = new MadeUpLog().hold({ op: 'held', worker: 'w', fence: 1n, asked: 0, granted: 10, until: 0, keeps: true })
    log.add({ type: 'asked', at: at(20), worker: 'w', op: 'waited', key: 'k', workload: 'fifo' })
    log.add({ type: 'ended', at: at(50), worker: 'w', how: 'killed' }, { type: 'phase', at: at(90), name: 'end' })
    const { operations } = timelineOf(log.run())
    expect(operations.get('held')).toMatchObject({ grantedMs: 10, endMs: 50, ending: 'killed' })
    expect(operations.get('waited')).toMatchObject({ answeredMs: 50, endMs: 50, ending: 'killed', grantedMs: undefined })
  })

  test('the verdict in one line', () => {
    const summary = summaryOf(goodRun())
    const violated = (...counts: number[]): string => {
      const guarantees = counts.map((count, index) => ({ invariant: `${index}`, count }))
      return verdictOf({ ...summary, violations: counts.reduce((a, b) => a + b), guarantees })
    }
    expect(verdictOf(summary)).toBe('no violation')
    expect(violated(1)).toBe('1 violation of 1 guarantee')
    expect(violated(2, 1)).toBe('3 violations of 2 guarantees')
    expect(verdictOf(summaryOf(emptyRun))).toContain('nothing was tested')
  })
})

describe('the page', () => {
  test.each([
    ['good', goodRun()],
    ['double hold', doubleHold()],
    ['hostile', hostileRun()],
    ['empty', emptyRun],
    ['simulated', simulatedRun({ seconds: 10, keys: 2, workers: 3, violations: 2 })],
  ])('is well-formed and needs nothing from elsewhere: %s', (_name, run) => {
    const page = htmlReport(run)
    const elements = wellFormed(page)
    expect(elements.filter(({ name }) => ['script', 'link', 'img', 'iframe', 'object', 'a'].includes(name))).toEqual([])
    expect(page).not.toMatch(/https?:|@import|url\((?!#)/)
    for (const { attributes } of elements) {
      expect([...attributes.keys()].filter((name) => name.startsWith('on') || name === 'src')).toEqual([])
      for (const value of attributes.values()) expect(value).not.toMatch(/NaN|Infinity|undefined/)
    }
    expect(textsIn(elements).join()).not.toMatch(/NaN|Infinity|undefined/)
  })

  test('says how it went, and how to see it again', () => {
    const good = htmlReport(goodRun())
    expect(good).toContain('<p class="verdict good">✓ no violation</p>')
    expect(good).toContain('<code>npm run nemesis -- --backend redis --seed 7</code>')
    expect(htmlReport(doubleHold())).toContain('<p class="verdict bad">✗ 1 violation of 1 guarantee</p>')
    expect(htmlReport(emptyRun)).not.toContain('verdict good')
  })

  test('every mark that is used is defined', () => {
    for (const run of [doubleHold(), hostileRun()]) {
      const elements = wellFormed(htmlReport(run))
      const ids = new Set(elements.map(({ attributes }) => `#${attributes.get('id')}`))
      expect(marksIn(elements).filter((href) => !ids.has(href ?? ''))).toEqual([])
    }
  })

  test('what is hostile is shown, and is not markup, not invisible, and not a line of ours', () => {
    const page = htmlReport(hostileRun())
    expect(page).toContain('&#60;script&#62;alert(1)&#60;/script&#62;&#34;&#39;&#38;\\u{202e}\\u{a}')
    expect(page).not.toMatch(/<script|\u202e/)
    expect(page).toContain('__proto__')
    const lines = logOf(sceneIn(hostileRun())).text.split('\n')
    expect(lines.filter((line) => line.startsWith('>      0.000  w9'))).toEqual([])
    expect(lines.length).toBeLessThan(20)
  })

  test('shows twenty, one of each guarantee among them', () => {
    const log = new MadeUpLog()
    for (let n = 0; n < 25; n++) {
      log.hold({ op: `${n}`, worker: 'w', fence: BigInt(n), asked: n * 10, granted: n * 10 + 1, until: n * 10 + 5 })
      log.violation(n === 24 ? 'rare' : 'common', n * 10 + 2, [`${n}`])
    }
    const run = log.run()
    const invariants = chosen(run, 20).map(({ invariant }) => invariant)
    expect(invariants).toEqual([...new Array<string>(19).fill('common'), 'rare'])
    const page = htmlReport(run)
    expect(wellFormed(page).filter(({ name }) => name === 'section')).toHaveLength(20)
    expect(page).toContain('and 5 more')
  })

  test('of 100,000 events, with violations at busy moments, is made soon and stays small', () => {
    const run = simulatedRun({ seconds: 60, keys: 3, workers: 8, violations: 30 })
    const events = [...run.events]
    // A flood on the very key, so that every drawing and every text has more than it can show.
    for (let n = 0; events.length < 100_000; n++) {
      const ms = (n * 0.9) % 60_000
      const who = { worker: `worker-${n % 40}`, op: `x${n}`, key: 'orders:0' }
      events.push({ type: 'asked', at: at(ms), ...who, workload: 'cancelled' })
      events.push({ type: 'refused', at: at(ms + 2), ...who, error: '<too late>'.repeat(9) })
    }
    // Of this process: what else the machine does is not its fault.
    const began = process.cpuUsage()
    const page = htmlReport({ ...run, events })
    const { user, system } = process.cpuUsage(began)
    expect((user + system) / 1_000).toBeLessThan(5_000)
    expect(Buffer.byteLength(page)).toBeLessThan(3_000_000)
    expect(page).toContain('Only the 80 operations nearest to the violation are drawn, of ')
    wellFormed(page)
  })

  test('the overview has the faults by name, the phases, and a mark for each violation', () => {
    const page = htmlReport(doubleHold())
    const head = 'The whole run</h2>'
    const overview = wellFormed(page.slice(page.indexOf(head) + head.length, page.indexOf('<h2>What went wrong')).trim())
    expect(textsIn(overview)).toEqual(expect.arrayContaining(['warm-up', 'faults', 'recovery', 'failover × 1']))
    expect(marksIn(overview)).toEqual(['#violated'])
    expect(ofClass(overview, 'rate')).toHaveLength(1)
  })
})

describe('the time around a violation', () => {
  test('is from 1 s before its operations to 1 s after, and closer where they meet', () => {
    const { span, closeUp, atMs } = sceneIn(doubleHold())
    expect(atMs).toBe(2_260)
    expect(span).toEqual({ fromMs: 900, toMs: 3_420 })
    expect(closeUp).toEqual({ fromMs: 2_215, toMs: 2_335 })
  })

  test('is at most 5 s, and has the violation', () => {
    const log = new MadeUpLog()
    log.hold({ op: 'a', worker: 'w1', fence: 1n, asked: 0, granted: 100, until: 60_000 })
    log.hold({ op: 'b', worker: 'w2', fence: 2n, asked: 50, granted: 30_000, until: 61_000 })
    const run = log.violation('mutual exclusion', 30_000, ['a', 'b']).run()
    expect(sceneIn(run).span).toEqual({ fromMs: 26_000, toMs: 31_000 })
  })

  test('of one that was found out much later is that of its operations', () => {
    const log = new MadeUpLog().hold({ op: 'a', worker: 'w', fence: 1n, asked: 0, granted: 10, until: 100 })
    expect(sceneIn(log.violation('late', 20_000, ['a']).run()).span).toEqual({ fromMs: -1_000, toMs: 4_000 })
  })

  test('of one without operations is that of the moment', () => {
    const log = new MadeUpLog().hold({ op: 'a', worker: 'w', fence: 1n, asked: 0, granted: 10, until: 9_000 })
    log.hold({ op: 'b', worker: 'w', key: 'another', fence: 1n, asked: 0, granted: 5_500, until: 9_000 })
    const run = log.violation('vague', 5_000, ['unknown'], 'somehow', null).run()
    expect(sceneIn(run)).toMatchObject({ span: { fromMs: 4_000, toMs: 6_000 }, closeUp: undefined, involved: [] })
    // It may be about any key. Then the text says which.
    expect(sceneIn(run).operations.map(({ id }) => id)).toEqual(['a', 'b'])
    expect(logOf(sceneIn(run)).text).toContain('GRANTED, fence 1  key another  (b)')
    expect(htmlReport(run)).toContain('1 operation is not in the log')
  })

  test('who is in it: its key, no other', () => {
    const { operations, involved, overlaps } = sceneIn(doubleHold())
    expect(operations.map(({ id }) => id).toSorted()).toEqual(['a', 'after', 'b', 'before'])
    expect(involved.map(({ id }) => id)).toEqual(['a', 'b'])
    expect(overlaps).toMatchObject([{ fromMs: 2_250, toMs: 2_300, ops: [{ id: 'a' }, { id: 'b' }] }])
  })
})

describe('the drawing of a violation', () => {
  const scene = sceneIn(doubleHold())
  const close = wellFormed(lanes(scene, scene.closeUp!, ['failover']))
  const whole = wellFormed(lanes(scene, scene.span, ['failover']))

  test('has a lane for each worker, those of the violation first', () => {
    expect(ofClass(whole, 'worker').map(({ text }) => text)).toEqual(['w1', 'w2', 'w3', 'gate: what the data saw'])
  })

  test('has bars from grant to release, with fences, and says how long it was held twice', () => {
    // 2,000 to 2,300 of 900 to 3,420 ms.
    const [bar] = ofClass(whole, 'hold')
    expect(parseFloat(bar?.attributes.get('x') ?? '')).toBeCloseTo((100 * 1_100) / 2_520, 1)
    expect(parseFloat(bar?.attributes.get('width') ?? '')).toBeCloseTo((100 * 300) / 2_520, 1)
    expect(textsIn(whole)).toEqual(expect.arrayContaining(['f41', 'f42', 'held twice: 50 ms', 'mutual exclusion']))
    expect(ofClass(whole, 'hold')).toHaveLength(4)
    expect(ofClass(whole, 'clash')).toHaveLength(2)
    expect(ofClass(whole, 'shared')).toHaveLength(1)
  })

  test('has the fault with its name, and the times from the violation on', () => {
    expect(textsIn(whole)).toEqual(expect.arrayContaining(['failover: primary', '0 ms', '−500', '+500']))
    expect(ofClass(whole, 'band')).toHaveLength(1)
  })

  test('shows what the gate refused in another shape than what it accepted', () => {
    expect(marksIn(close)).toEqual(expect.arrayContaining(['#read-accepted', '#wrote-refused']))
    expect(marksIn(whole).filter((href) => href === '#wrote-accepted')).toHaveLength(1)
    expect(textsIn(close)).toEqual(expect.arrayContaining(['f42 r', 'f41 w ✗']))
  })

  test('shows what handles said', () => {
    expect(ofClass(whole, 'confirmed')).toHaveLength(4)
    expect(ofClass(close, 'confirmed')).toHaveLength(2)
  })

  test('has details for the pointer', () => {
    const titles = whole.filter(({ name }) => name === 'title').map(({ text }) => text)
    const told = 'w1, operation a: asked at −360 ms, granted at −260 ms with fence 41, held for 300 ms, released'
    expect(titles).toContain(told)
  })

  test('marks losses, refusals and deaths', () => {
    const log = new MadeUpLog()
    log.hold({ op: 'lost', worker: 'w1', fence: 1n, asked: 0, granted: 10, until: 0, keeps: true })
    log.add({ type: 'lost', at: at(500), worker: 'w1', op: 'lost', key: 'k', error: 'gone' })
    log.hold({ op: 'killed', worker: 'w2', fence: 2n, asked: 0, granted: 510, until: 0, keeps: true })
    log.add({ type: 'ended', at: at(700), worker: 'w2', how: 'killed' })
    log.refusal('refused', 'w3', 100, 600)
    const told = sceneIn(log.violation('x', 550, ['lost', 'killed']).run())
    const elements = wellFormed(lanes(told, told.span, []))
    expect(marksIn(elements)).toEqual(expect.arrayContaining(['#lost', '#cut', '#refused']))
    expect(textsIn(elements)).toContain('✕ killed')
  })

  test('numbers fences that are too long to write, by size', () => {
    const log = new MadeUpLog()
    const big = 1_805_547_520_000_000_000n
    log.hold({ op: 'a', worker: 'w1', fence: big + 9n, asked: 0, granted: 10, until: 300 })
    log.hold({ op: 'b', worker: 'w2', fence: big, asked: 0, granted: 310, until: 500 })
    const run = log.violation('fence order', 310, ['a', 'b']).run()
    expect(sceneIn(run).fenceName(big)).toBe('f1')
    expect(sceneIn(run).fenceName(big + 9n)).toBe('f2')
    expect(htmlReport(run)).toContain(`f2 = ${big + 9n}`)
  })

  test('does not let callers of one worker cover each other', () => {
    const log = new MadeUpLog()
    for (let n = 0; n < 9; n++) {
      log.hold({ op: `${n}`, worker: 'w', fence: BigInt(n), asked: 0, granted: 10 * n, until: 10 * n + 5 })
    }
    const crowded = sceneIn(log.violation('x', 10, ['1']).run())
    const elements = wellFormed(lanes(crowded, crowded.span, []))
    const places = ofClass(elements, 'hold').map(({ attributes }) => attributes.get('y'))
    expect(new Set(places).size).toBe(5)
    expect(ofClass(elements, 'worker')[0]?.text).toMatch(/^w \(\d more not drawn\)$/)
  })
})

describe('the text of a violation', () => {
  test('tells all of it in order, with the moment in its place', () => {
    const { text, left } = logOf(sceneIn(doubleHold()))
    const lines = text.split('\n')
    expect(left).toBe(0)
    expect(lines).toContain('>    -10.000  w2       GRANTED, fence 42  (b)')
    expect(lines).toContain('>     20.000  w1       writes 6 with fence 41: REFUSED by the gate  (a)')
    expect(lines).toContain('     -60.000  nemesis  fault 1 begins: failover primary')
    const moment = lines.findIndex((line) => line.startsWith('*          0  mutual exclusion: w1 said'))
    expect(lines[moment - 1]).toContain('reads 5 with fence 42')
    expect(lines[moment + 1]).toContain('says that it holds')
    expect(text).not.toContain('elsewhere')
  })

  test('leaves out what is far away, and says so', () => {
    const run = simulatedRun({ seconds: 10, keys: 1, workers: 3, violations: 1 })
    const { text, lines, left } = logOf(sceneIn(run))
    expect(lines).toBe(150)
    expect(left).toBeGreaterThan(100)
    const counted = [...text.matchAll(/… (\d+) left out …/g)].reduce((sum, [, number]) => sum + Number(number), 0)
    expect(counted).toBe(left)
  })
})

describe('the tables of the documentation', () => {
  const good = summaryOf(goodRun())
  const bad = { ...summaryOf(doubleHold()), backend: 'postgres' }

  test('have a row for each backend, and totals', () => {
    const text = markdownSummary([good, { ...good, seed: 8 }, bad])
    expect(text).toContain('**1 violation** in 3 runs. Seeds: redis 7, redis 8, postgres 7.')
    const lines = text.split('\n').filter((line) => line.startsWith('|'))
    const rows = lines.map((line) => line.split('|').slice(1, -1).map((cell) => cell.trim()))
    expect(rows).toContainEqual(['redis', '2', '0.3', '4', '82', '0', '0', '8/s', '0.3/s', '400 ms', '2'])
    expect(rows).toContainEqual(['postgres', '1', '0.1', '1', '5', '0', '**1**', '0/s', '2/s', '181 ms', '0'])
    expect(rows).toContainEqual(['**all**', '3', '0.4', '5', '87', '0', '**1**', '7.1/s', '0.7/s', '400 ms', '2'])
    expect(rows).toContainEqual(['fault', 'redis', 'postgres', 'all'])
    expect(rows).toContainEqual(['kill', '2', '–', '2'])
    expect(rows).toContainEqual(['failover', '–', '1', '1'])
    expect(rows).toContainEqual(['**all**', '4', '1', '5'])
  })

  test('leave what is written by hand as it was', () => {
    const page = withSummary(undefined, [good]).replace('# Under faults\n', '# Mine\n\nBefore.\n').concat('\nAfter.\n')
    const again = withSummary(page, [bad])
    expect(again).toMatch(/^# Mine\n\nBefore\.\n\n<!-- Made by/)
    expect(again).toMatch(/-->\n\nAfter\.\n$/)
    expect(again).toContain('postgres')
    expect(again).not.toContain('redis')
    expect(withSummary(again, [bad])).toBe(again)
  })

  test('do not guess where to go', () => {
    expect(() => withSummary('# Mine\n', [good])).toThrow('needs these lines')
  })

  test('are tables whatever the names are', () => {
    const text = markdownSummary([{ ...good, backend: 'a|b<i>\n' }])
    const tables = text.split('\n').filter((line) => line.startsWith('|'))
    expect(text).not.toContain('<i>')
    expect(new Set(tables.slice(0, 3).map((line) => line.split('|').length)).size).toBe(1)
  })

  test('can be empty', () => {
    expect(markdownSummary([])).toContain('No run yet.')
  })
})

test('the line while it runs', () => {
  const progress: Progress = { backend: 'redis', leftMs: 64_001, opsPerS: 1_234.4, grants: 56_789, faults: 12, violations: 0 }
  expect(progressLine(progress)).toBe('redis: 1:05 left · 1,234 ops/s · 56,789 grants · 12 faults · no violation')
  expect(progressLine({ ...progress, leftMs: -5, faults: 1, violations: 2 })).toBe(
    'redis: 0:00 left · 1,234 ops/s · 56,789 grants · 1 fault · 2 VIOLATIONS',
  )
})

test('the judge of markup finds what is wrong with it', () => {
  const wrong = ['<p>', '<p><b></p></b>', '<p>a & b</p>', '<p title=x>a</p>', '<p title="<b>">a</p>', 'a < b', '<p a="1" a="2"/>']
  for (const markup of wrong) expect(() => wellFormed(markup), markup).toThrow()
  const found = wellFormed('<!doctype html>\n<p class="x">a &#38; b<br/></p>')
  expect(found).toMatchObject([{ name: 'p', text: 'a &#38; b' }, { name: 'br' }])
})
