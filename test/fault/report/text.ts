/** How a report writes numbers, and what others wrote: keys, errors and names are not to be trusted. */

/**
 * Text from outside, for a page: no markup, no end without end, and nothing that cannot be seen. A line break in a key
 * would else forge a line of the log, and a right-to-left mark turn one round.
 */
export const shown = (text: string, most = 80): string => escape(visible(text, most))

export const escape = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)

export function visible(text: string, most = 80): string {
  const cut = text.length > most ? `${text.slice(0, most - 1)}…` : text
  return cut.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Cn}\p{Co}\p{Zl}\p{Zp}]/gu, (character) => {
    return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`
  })
}

export const count = (number: number): string =>
  number < 10 ? String(round(number, 1)) : Math.round(number).toLocaleString('en')

export const perSecond = (number: number | null): string => (number === null ? '–' : `${count(number)}/s`)

export function time(ms: number): string {
  if (ms < 10) return `${round(ms, 2)} ms`
  if (ms < 1_000) return `${round(ms, 1)} ms`
  if (ms < 120_000) return `${round(ms / 1_000, 1)} s`
  return `${round(ms / 60_000, 1).toLocaleString('en')} min`
}

/** `+1.5`, `−20`: from the moment that everything is about. */
export function relative(ms: number, digits = 1): string {
  const rounded = round(ms, digits)
  const size = Math.abs(rounded).toLocaleString('en', { maximumFractionDigits: digits })
  return rounded === 0 ? '0' : `${rounded < 0 ? '−' : '+'}${size}`
}

export const plural = (number: number, one: string, many = `${one}s`): string =>
  `${number.toLocaleString('en')} ${number === 1 ? one : many}`

export const round = (number: number, digits: number): number => Number(number.toFixed(digits))
