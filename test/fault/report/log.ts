/** The same in words, line by line. */
import type { Event } from '../history.js'
import type { Scene } from './scene.js'
import { visible } from './text.js'
import type { Operation, Timed } from './timeline.js'

const MOST_LINES = 150

export interface Log {
  readonly text: string
  readonly lines: number
  readonly left: number
}

/** Times are ms from the violation. `>`: one of the operations that show it. */
export function logOf(scene: Scene): Log {
  const operations = new Map(scene.operations.map((operation) => [operation.id, operation]))
  const involved = new Set(scene.involved.map(({ id }) => id))
  const kept = keep(scene, involved)
  const names = [...kept].map(({ event }) => who(event, operations).length)
  const width = Math.min(24, Math.max(4, ...names))
  const lines: string[] = []
  let left = 0
  const close = (): void => {
    if (left > 0) lines.push(`  … ${left} left out …`)
    left = 0
  }
  let toldMoment = false
  for (const timed of scene.events) {
    if (!toldMoment && timed.ms >= scene.atMs) {
      close()
      lines.push(momentLine(scene))
      toldMoment = true
    }
    if (!kept.has(timed)) left++
    else {
      close()
      lines.push(lineOf(scene, timed, who(timed.event, operations).padEnd(width), involved))
    }
  }
  close()
  if (!toldMoment) lines.push(momentLine(scene))
  return { text: lines.join('\n'), lines: kept.size, left: scene.events.length - kept.size }
}

const momentLine = ({ violation: { invariant, message } }: Scene): string =>
  `* ${'0'.padStart(10)}  ${visible(invariant, 80)}: ${visible(message, 400)}`

/** What shows the violation, and what is nearest to it. */
function keep({ events, atMs }: Scene, involved: ReadonlySet<string>): Set<Timed> {
  const weight = ({ ms, event }: Timed): number => {
    const matters = 'op' in event ? involved.has(event.op) : true
    return Math.abs(ms - atMs) - (matters ? 1e9 : 0)
  }
  return new Set(events.toSorted((a, b) => weight(a) - weight(b)).slice(0, MOST_LINES))
}

function who(event: Event, operations: ReadonlyMap<string, Operation>): string {
  if ('worker' in event) return visible(event.worker, 24)
  if (event.type === 'stalled') return event.what
  if (event.type === 'read' || event.type === 'wrote') return visible(operations.get(event.op)?.worker ?? '?', 24)
  return event.type === 'phase' ? 'run' : 'nemesis'
}

function lineOf(scene: Scene, { ms, event }: Timed, name: string, involved: ReadonlySet<string>): string {
  const sign = 'op' in event && involved.has(event.op) ? '>' : ' '
  const key = scene.violation.key === undefined && 'key' in event ? `  key ${visible(event.key, 60)}` : ''
  const op = 'op' in event ? `  (${visible(event.op, 40)})` : ''
  return `${sign} ${at(scene, ms)}  ${name}  ${textOf(event, scene, ms)}${key}${op}`
}

const at = ({ atMs }: Scene, ms: number): string => (ms - atMs).toFixed(3).padStart(10)

const gateSays = (accepted: boolean): string => (accepted ? 'accepted' : 'REFUSED by the gate')

function textOf(event: Event, scene: Scene, ms: number): string {
  switch (event.type) {
    case 'began':
      return 'process began'
    case 'ended': {
      const why = event.why === undefined ? '' : `: ${visible(event.why, 160)}`
      return `process ${event.how === 'closed' ? 'ended' : event.how}${why}`
    }
    case 'stalled':
      return `had not run for ${(Number(event.at - event.since) / 1e6).toFixed(0)} ms`
    case 'asked':
      return `asks (${event.workload})`
    case 'granted':
      return `GRANTED, fence ${event.fence}`
    case 'refused':
      return `refused: ${visible(event.error, 160)}`
    case 'confirmed':
      return `says that it holds (asked at ${at(scene, ms - Number(event.at - event.since) / 1e6).trim()})`
    case 'lost':
      return `LOST: ${visible(event.error, 160)}`
    case 'releasing':
      return 'releases'
    case 'released':
      if (typeof event.ours === 'string') return `release failed: ${visible(event.ours, 160)}`
      return `released: it was ${event.ours ? 'ours' : 'not ours any more'}`
    case 'left':
      return 'leaves it to its session, which is orphaned'
    case 'saying':
      return `is about to say word ${event.n}`
    case 'said':
      return `has said word ${event.n}`
    case 'observed':
      return `hears from ${event.observer}: word ${event.n} of ${visible(event.by, 40)}, term ${event.rev}`
    case 'blind':
      return `hears nothing any more: ${visible(event.error, 160)}`
    case 'trying':
      return `is about to commit ${visible(event.tx, 40)}`
    case 'committed':
      return `has committed ${visible(event.tx, 40)} as revision ${event.revision}`
    case 'uncommitted':
      return `does not know what became of ${visible(event.tx, 40)}: ${visible(event.error, 160)}`
    case 'generation':
      return `transactions are about other keys from here on (${event.generation})`
    case 'read':
      return `reads ${event.value} with fence ${event.fence}: ${gateSays(event.accepted)}`
    case 'wrote': {
      const lost = event.lostUpdate ? ', LOST AN UPDATE' : ''
      return `writes ${event.value} with fence ${event.fence}: ${gateSays(event.accepted)}${lost}`
    }
    case 'fault':
      return `fault ${event.fault} begins: ${visible(event.name, 60)} ${visible(event.target, 60)}`
    case 'healed':
      return `fault ${event.fault} is healed: ${visible(event.name, 60)}`
    case 'phase':
      return `phase: ${event.name}`
  }
}
