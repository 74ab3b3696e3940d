/** The real etcdctl, as a process: it holds a lock, or leads, until it is told to end. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { onTestFinished } from 'vitest'
import { CTL, CTL_ENV, type EtcdServer } from './etcd-server.js'
import { pathOf } from './unprivileged.js'
import { until } from './until.js'

export class Etcdctl {
  readonly lines: string[] = []
  /** The first that it says: of `lock`, the key that it holds. */
  readonly holds: Promise<string>
  readonly #child: ChildProcess

  constructor({ endpoint }: EtcdServer, ...args: readonly string[]) {
    this.#child = spawn(pathOf(CTL), [`--endpoints=${endpoint}`, ...args], { env: CTL_ENV, stdio: ['ignore', 'pipe', 'inherit'] })
    onTestFinished(() => void this.#child.kill('SIGKILL'))
    const output = createInterface(this.#child.stdout!).on('line', (line) => this.lines.push(line))
    this.holds = once(output, 'line').then(([line]) => String(line))
  }

  async says(text: string): Promise<void> {
    await until(`etcdctl to say ${text}`, async () => this.lines.some((line) => line.includes(text)))
  }

  async end(): Promise<void> {
    const exited = once(this.#child, 'exit')
    this.#child.kill('SIGINT')
    await exited
  }
}
