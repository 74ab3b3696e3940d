/** Enough of a parser to see that markup is what it was meant to be: all closed, all quoted, all escaped. */

export interface Element {
  readonly name: string
  readonly attributes: ReadonlyMap<string, string>
  /** Text of its own, as written. */
  text: string
}

const TOKEN = /<!doctype html>|<\/([\w-]+)>|<([\w-]+)((?:\s+[\w:-]+="[^"<]*")*)\s*(\/?)>|[^<]+/iy
const BARE_AMPERSAND = /&(?!#\d+;|#x[\da-f]+;|\w+;)/i

/** All elements, in order. Throws at the first thing that is wrong. */
export function wellFormed(markup: string): Element[] {
  const found: Element[] = []
  const open: Element[] = []
  TOKEN.lastIndex = 0
  while (TOKEN.lastIndex < markup.length) {
    const place = TOKEN.lastIndex
    const token = TOKEN.exec(markup)
    if (!token) throw new Error(`No markup: ${markup.slice(place, place + 80)}`)
    const [text, closed, opened, attributes = '', ends] = token
    if (BARE_AMPERSAND.test(text)) throw new Error(`A bare ampersand: ${text.slice(0, 80)}`)
    if (closed !== undefined) {
      const last = open.pop()
      if (last?.name !== closed) throw new Error(`</${closed}> closes <${last?.name}>: ${markup.slice(place - 80, place + 20)}`)
    } else if (opened !== undefined) {
      const element = { name: opened, attributes: attributesOf(attributes), text: '' }
      found.push(element)
      if (ends !== '/') open.push(element)
    } else {
      const last = open.at(-1)
      if (last) last.text += text
    }
  }
  if (open.length > 0) throw new Error(`Not closed: ${open.map(({ name }) => name).join(' ')}`)
  return found
}

function attributesOf(text: string): Map<string, string> {
  const found = new Map<string, string>()
  for (const [, name = '', value = ''] of text.matchAll(/([\w:-]+)="([^"]*)"/g)) {
    if (found.has(name)) throw new Error(`${name} is there twice: ${text}`)
    found.set(name, value)
  }
  return found
}
