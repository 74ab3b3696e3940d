/** Turns the events of one manager into log lines. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { EventName, HoldfastEvent, WarningEvent } from './events.js'

type Write = (...args: any[]) => void

/** The part of pino's or the console's shape that is used. */
export interface Logger {
  info: Write
  warn: Write
  error: Write
}

type Fields = Record<string, string | number>

/** Writes the four documented lines, and warnings. The result stops it. */
export function logEvents(logger: Logger, owner: string): () => void {
  const write = lineWriter(logger)
  const stops = [
    listen('acquired', owner, (e) => write('info', 'lock acquired', { ...who(e), waitedMs: Math.round(e.waitedMs) })),
    listen('released', owner, (e) => write('info', 'lock released', { ...who(e), heldMs: Math.round(e.heldMs) })),
    listen('renew-failed', owner, (e) =>
      write('warn', 'renew failed', { ...who(e), remainingMs: Math.round(e.remainingMs), reason: e.error.message }),
    ),
    listen('lost', owner, (e) => write('error', 'ownership lost', { ...who(e), heldMs: Math.round(e.heldMs), reason: e.error.message })),
    listenOn<WarningEvent>('holdfast:warning', owner, (e) => write('warn', e.warning, { component: 'holdfast', owner })),
  ]
  return () => stops.forEach((stop) => stop())
}

/** Without a logger, warnings go where Node's own go. The result stops it. */
export function printWarnings(owner: string): () => void {
  return listenOn<WarningEvent>('holdfast:warning', owner, ({ warning }) => process.emitWarning(warning, 'HoldfastWarning'))
}

function who({ key, owner, fence }: { key: string; owner: string; fence: bigint }): Fields {
  return { component: 'holdfast', key, owner, fence: String(fence) }
}

/** pino and bunyan take the fields first, the console and most others the message. */
function lineWriter(logger: Logger): (level: keyof Logger, message: string, fields: Fields) => void {
  const fieldsFirst = 'bindings' in logger || 'addStream' in logger
  return (level, message, fields) => (fieldsFirst ? logger[level](fields, message) : logger[level](message, fields))
}

function listen<N extends EventName>(name: N, owner: string, listener: (event: HoldfastEvent<N>) => void): () => void {
  return listenOn(`holdfast:${name}`, owner, listener)
}

/** Channels are the whole process's; a manager's log is about that manager. */
function listenOn<E extends { readonly owner: string }>(channel: string, owner: string, listener: (event: E) => void): () => void {
  const filtered = (message: unknown) => {
    const event = message as E
    if (event.owner === owner) listener(event)
  }
  subscribe(channel, filtered)
  return () => unsubscribe(channel, filtered)
}
