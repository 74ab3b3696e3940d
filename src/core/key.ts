import { InvalidKeyError } from './errors.js'

const MAX_KEY_BYTES = 512

/** Keys go to every store as UTF-8 bytes, so an ill-formed string (a lone surrogate) would collapse onto another key. */
export function checkKey(key: unknown): asserts key is string {
  if (typeof key !== 'string') throw new InvalidKeyError(`A key is a string, not ${describe(key)}. Write String(id), or key\`order:${'${id}'}\`.`)
  if (key === '') throw new InvalidKeyError('A key must not be empty.')
  if (key.length > MAX_KEY_BYTES || Buffer.byteLength(key) > MAX_KEY_BYTES) {
    throw new InvalidKeyError(`A key has at most ${MAX_KEY_BYTES} bytes of UTF-8; this one has ${Buffer.byteLength(key)}: "${key.slice(0, 40)}…"`)
  }
  if (LONE_SURROGATE.test(key)) throw new InvalidKeyError('A key must be well-formed Unicode; this one has a lone surrogate.')
}

const LONE_SURROGATE = /\p{Surrogate}/u

export type KeyPart = string | number | bigint | boolean

/**
 * Builds a key from parts: key`order:${id}`. A part's own `%`, `:` and `/` are escaped, and two parts must have a `:` or `/`
 * between them, so that different parts never give the same key: ('a:b', 'c') and ('a', 'b:c') differ.
 */
export function key(texts: TemplateStringsArray, ...parts: readonly KeyPart[]): string {
  if (!Array.isArray(texts)) throw new InvalidKeyError('key is a tag for a template: write key`order:${id}`, without parentheses.')
  if (!areApart(texts)) throw new InvalidKeyError(`Two parts of a key need a ":" or "/" between them: key\`${texts.join('${…}')}\`.`)
  return joinKey(texts, parts)
}

/** Whether parts between these texts never run into each other. */
export function areApart(texts: readonly string[]): boolean {
  return texts.slice(1, -1).every((between) => /[:/]/.test(between))
}

/** The parts between the texts, each escaped and checked. */
export function joinKey(texts: readonly string[], parts: readonly unknown[]): string {
  const built = texts.reduce((sofar, text, i) => sofar + escape(parts[i - 1], i) + text)
  checkKey(built)
  return built
}

function escape(part: unknown, position: number): string {
  switch (typeof part) {
    case 'string':
      if (part === '') throw new InvalidKeyError(`Part ${position} of the key is empty.`)
      return part.replace(/[%:/]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)
    case 'number':
      if (!Number.isFinite(part)) throw new InvalidKeyError(`Part ${position} of the key is ${part}.`)
      return String(part)
    case 'bigint':
    case 'boolean':
      return String(part)
    default:
      throw new InvalidKeyError(`Part ${position} of the key is ${describe(part)}; a part is a string, number, bigint or boolean.`)
  }
}

function describe(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'an array' : typeof value === 'object' ? 'an object' : typeof value
}
