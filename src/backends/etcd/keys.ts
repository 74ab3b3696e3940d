/**
 * The names of our keys, in etcd:
 *
 *   <prefix>/<key>/<lease>-<n>   a claim: in the order in which they were created they are the line for <key>; <n> is used again
 *   <prefix>/%/<lease>           the mailbox of a process: what others tell it, and whose end is the lease's
 *   <prefix>/%/<lease>/<id>      says that what was asked for in the name of a session, under this id, is void, whenever it comes
 *   <resource><lease>            what a session has: as it is, since programs in Go have the same; the resource ends with a `/`
 *
 * `etcdctl lock <prefix>/<key>` and Go's Mutex stand in the same line. `/` and `%` in a key are escaped, or `a` and `a/b` would get
 * into each other's way. Within the code a key is text with a character for each byte, since others may have made it of any.
 */

/** The character after `/`: where the keys that begin with it end. */
const AFTER_SLASH = '0'
const MAILBOXES = '%'
/** In UTF-8, too, each of these is one byte. */
const IS_ASCII = /^[\0-\x7f]*$/
/** ASCII without `%` and `/`. */
const IS_PLAIN = /^[\0-$&-.0-\x7f]*$/

export class Keys {
  readonly #root: string

  constructor(prefix: string) {
    this.#root = `${bytesOf(prefix)}/`
  }

  /** What the keys of all claims on a resource begin with. */
  directory(resource: string): string {
    return `${this.#root}${escape(resource)}/`
  }

  claim(directory: string, leaseName: string, number: number): string {
    return `${directory}${leaseName}-${number}`
  }

  mailbox(lease: bigint): string {
    return `${this.#root}${MAILBOXES}/${lease.toString(16)}`
  }

  void(lease: bigint, id: string): string {
    return `${this.mailbox(lease)}/${id}`
  }

  /** Undefined for a key of none: a mailbox, or somebody's. */
  resourceOf(key: string): string | undefined {
    const end = key.indexOf('/', this.#root.length)
    const escaped = key.slice(this.#root.length, end)
    return end < 0 || !isIn(key, end + 1) || escaped === '' || /%(?!2[5F])/.test(escaped) ? undefined : unescape(escaped)
  }

  /** Where the claims on resources that begin with some text are. */
  rangeOf(beginning: string): { readonly key: Buffer; readonly rangeEnd: Buffer } {
    const from = `${this.#root}${escape(beginning)}`
    return { key: toBytes(from), rangeEnd: toBytes(afterAll(from)) }
  }
}

/** As only the claims of managers are. */
export function isNumbered(key: string): boolean {
  return key.includes('-', key.lastIndexOf('/'))
}

/** Where what sessions have of a resource is. */
export function memberDirectory(resource: string): string {
  return bytesOf(resource)
}

export function memberKey(directory: string, lease: bigint): string {
  return `${directory}${lease.toString(16)}`
}

/** The first key that is not in a directory any more. */
export function endOf(directory: string): string {
  return directory.slice(0, -1) + AFTER_SLASH
}

/** Not further down: with one prefix that begins with another, what is in the directory of a key may have directories of its own. */
export function isIn(key: string, directoryLength: number): boolean {
  return !key.includes('/', directoryLength)
}

export function toBytes(key: string): Buffer {
  return Buffer.from(key, 'latin1')
}

export function fromBytes(key: Buffer): string {
  return key.toString('latin1')
}

function bytesOf(text: string): string {
  return IS_ASCII.test(text) ? text : Buffer.from(text).toString('latin1')
}

function escape(resource: string): string {
  if (IS_PLAIN.test(resource)) return resource
  return bytesOf(resource).replace(/[%/]/g, (character) => (character === '/' ? '%2F' : '%25'))
}

function unescape(escaped: string): string {
  return toBytes(escaped.replace(/%2[5F]/g, (code) => (code === '%2F' ? '/' : '%'))).toString()
}

/** The first text after all that begin with this one. It ends with a byte below 0xff: it has a `/`. */
function afterAll(beginning: string): string {
  const kept = beginning.replace(/\xff+$/, '')
  return kept.slice(0, -1) + String.fromCharCode(kept.charCodeAt(kept.length - 1) + 1)
}
