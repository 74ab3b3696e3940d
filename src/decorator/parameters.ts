/**
 * The names of a function's parameters, from its source; undefined unless they are certain. TypeScript keeps no names, a minifier
 * changes them, and another decorator's wrapper has others.
 */
export function parameterNames(fn: Function): readonly string[] | undefined {
  const source = Function.prototype.toString.call(fn)
  const list = /^(?:static\s+)?(?:async\s+)?(?:function\s*)?\*?\s*(?:#?[\p{ID_Start}$_][\p{ID_Continue}$]*|\[[^\]]*\])?\s*\(([^()]*)\)/u.exec(source)?.[1]
  if (list === undefined) return undefined
  // What looks like a comment may be in a string, which stays.
  const bare = list.replace(/('[^']*'|"[^"]*")|\/\*[\s\S]*?\*\/|\/\/[^\n]*/g, '$1').trim().replace(/,$/, '')
  if (bare === '') return []
  const names = bare.split(',').map((one) => /^\s*([\p{ID_Start}$_][\p{ID_Continue}$]*)\s*(?:=\s*[\w.'"-]+\s*)?$/u.exec(one)?.[1])
  // A name of one letter is what a minifier makes: then it may be any other's.
  return names.every((name) => name !== undefined && name.length > 1) ? (names as string[]) : undefined
}
