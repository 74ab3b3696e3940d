/** Peers that are written in Go: programs that are built here, of the sources that Debian's packages have. */
import { readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { join } from 'node:path'
import { DEBIAN_GO } from '../../scripts/lib/binaries.mjs'
import { withCheckoutLock } from '../../scripts/lib/install.mjs'
import { step } from '../../scripts/lib/run.mjs'

const SOURCES = fileURLToPath(new URL('../go', import.meta.url))
const BUILT = fileURLToPath(new URL('../node_modules/.cache/go', import.meta.url))
/** Without modules: these would be looked for on the network. */
const ENV = { GO111MODULE: 'off', GOPATH: DEBIAN_GO, GOFLAGS: '' }

/** What has not changed is not built again: Go itself knows. */
export async function buildGo(log) {
  await withCheckoutLock(async () => {
    for (const name of readdirSync(SOURCES)) {
      await step(`go build ${name}`, 'go', ['build', '-o', goProgram(name), '.'], { log, env: ENV, cwd: join(SOURCES, name) })
    }
  }, '-go')
}

export const goProgram = (name) => join(BUILT, name)
