import { readFileSync } from 'node:fs'

/** Of everything that bench/package.json asks for, as installed. Empty in a smoke run without it. */
export function installedVersions() {
  const { dependencies } = read('../package.json')
  const found = Object.keys(dependencies).map((name) => [name, read(`../node_modules/${name}/package.json`)?.version])
  return { holdfast: read('../../package.json').version, ...Object.fromEntries(found.filter(([, version]) => version)) }
}

function read(path) {
  try {
    return JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'))
  } catch {
    return undefined
  }
}
