/**
 * Keys from templates: `'order:{orderId}'`, `'{user.id}'`. Everything that can be wrong with one is found when the method is
 * decorated, not when it is called; but for values that are not there.
 */
import { ConfigurationError, InvalidKeyError } from '../core/errors.js'
import { areApart, joinKey } from '../core/key.js'

interface Placeholder {
  readonly text: string
  readonly position: number
  readonly path: readonly string[]
}

export type KeyOf = (args: readonly unknown[]) => string

/** `names`: of the parameters, by position. `advice`: for one that is not among them. */
export function compileTemplate(template: string, names: readonly string[], advice = ''): KeyOf {
  const [texts, found] = divide(template)
  if (!areApart(texts)) throw new ConfigurationError(`Two placeholders need a ":" or "/" between them: '${template}'.`)
  const placeholders = found.map((text): Placeholder => {
    const [name, ...path] = text.split('.')
    const position = names.indexOf(name!)
    if (position < 0) throw new ConfigurationError(`{${text}} in the key '${template}' names no parameter. There are: ${names.join(', ') || 'none'}.${advice}`)
    return { text, position, path }
  })
  return (args) => joinKey(texts, placeholders.map((one) => valueOf(one, args, template)))
}

/** Whether a template has placeholders at all. */
export function hasPlaceholders(template: string): boolean {
  return divide(template)[1].length > 0
}

function divide(template: string): [texts: string[], placeholders: string[]] {
  const parts = template.split(/\{([^{}]*)\}/)
  const texts = parts.filter((_, i) => i % 2 === 0)
  const placeholders = parts.filter((_, i) => i % 2 === 1)
  const isStray = texts.some((text) => /[{}]/.test(text))
  const isName = (text: string) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*(\.[^.{}\s]+)*$/u.test(text)
  if (isStray || !placeholders.every(isName)) {
    throw new ConfigurationError(`'${template}' is no template for a key: placeholders are {name} and {name.path}.`)
  }
  return [texts, placeholders]
}

/** What is not there must not make one key of many. */
function valueOf({ text, position, path }: Placeholder, args: readonly unknown[], template: string): unknown {
  let value = args[position]
  for (const step of path) value = value === undefined || value === null ? undefined : (value as Record<string, unknown>)[step]
  if (value === undefined || value === null) throw new InvalidKeyError(`{${text}} in the key '${template}' is ${value}: a key needs a value.`)
  return value
}
