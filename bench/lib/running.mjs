/** How long a private server runs, whichever it is. */
import { pause } from '../../scripts/lib/run.mjs'
import { freePort } from './ports.mjs'

const ATTEMPTS = 20

/** Somebody else may be quicker to take the port: then another is tried. */
export async function startOnFreePort(tryToStart) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await tryToStart(await freePort())
    } catch (error) {
      if (attempt === ATTEMPTS || !/address already in use/i.test(error.message)) throw error
    }
  }
}

/** It is stopped whatever becomes of `body`. */
export async function whileRunning(server, body) {
  try {
    return await body(server)
  } catch (error) {
    // A signal from the terminal reaches the server as well: then that is why it is gone.
    await pause(0)
    throw error
  } finally {
    await server.stop()
  }
}
