/** Processes on an etcd that is made up: all of them on one clock that the test moves. */
import { EtcdBackend } from '../../src/backends/etcd/backend.js'
import type { ManagerOptions } from '../../src/core/options.js'
import { LockManager } from '../../src/lock-manager.js'
import { MadeUpClient, MadeUpEtcd } from './made-up-etcd.js'
import { ManualClock } from './manual-clock.js'

const STEP_MS = 5
const PATIENCE_MS = 30_000

export interface MadeUpProcess {
  readonly name: string
  readonly client: MadeUpClient
  readonly locks: LockManager
}

export class MadeUpWorld {
  readonly clock = new ManualClock()
  readonly etcd = new MadeUpEtcd(this.clock)

  process(name: string, options: ManagerOptions = {}): MadeUpProcess {
    const client = new MadeUpClient(this.etcd, name)
    const locks = new LockManager((scope) => new EtcdBackend(client, scope), { owner: name, ...options }, this.clock)
    return { name, client, locks }
  }

  /** Lets time pass until it is settled. */
  async soon<T>(work: Promise<T>): Promise<T> {
    let isSettled = false
    const settled = () => void (isSettled = true)
    work.then(settled, settled)
    for (let ms = 0; ms < PATIENCE_MS && !isSettled; ms += STEP_MS) await this.clock.advance(STEP_MS)
    if (!isSettled) throw new Error(`Not settled within ${PATIENCE_MS} ms of the test's clock.`)
    return work
  }

  pause(ms: number): Promise<void> {
    return new Promise((resume) => {
      this.clock.timer(ms, resume, 'awaited')
    })
  }
}

/** Whether its holder may go on with what it guards, at this very moment. */
export function isHeld(lock: { assertHeld(): void }): boolean {
  try {
    lock.assertHeld()
    return true
  } catch {
    return false
  }
}
