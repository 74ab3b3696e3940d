/** No store and one process only: how fast a hand-over can be if nobody else has to know of it. */
import { Mutex } from 'async-mutex'

export async function open() {
  const mutexes = new Map()
  return {
    acquire: (key) => {
      let mutex = mutexes.get(key)
      if (!mutex) mutexes.set(key, (mutex = new Mutex()))
      return mutex.acquire()
    },
    release: (release) => release()
  }
}
