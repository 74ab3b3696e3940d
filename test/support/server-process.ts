/** A private server on loopback: a process, perhaps with others of its own, with a port, a folder and a log. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, existsSync, openSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from './ports.js'
import { exited, hasExited, killFamily, makeFolder, pauseFamily, resumeFamily, track } from './processes.js'
import { giveAway, pathOf, unprivileged, type Program } from './unprivileged.js'

export interface ServerOptions {
  /** A free one, if not given. */
  readonly port?: number
  /** On top of ours. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

const READY_MS = 30_000
const STOP_MS = 10_000

/** `prepare` fills the folder; it belongs to the user that the server runs as. */
export async function startServer<Server extends ServerProcess>(
  name: string,
  { port }: ServerOptions,
  prepare: (folder: string) => Promise<void>,
  make: (port: number, folder: string) => Server,
): Promise<Server> {
  const folder = makeFolder(name)
  try {
    giveAway(folder)
    await prepare(folder)
    for (let attempt = 0; ; attempt++) {
      const server = make(port ?? (await freePort()), folder)
      try {
        await server.start()
        return server
      } catch (error) {
        if (!(error instanceof PortTaken) || port !== undefined || attempt >= 20) throw error
      }
    }
  } catch (error) {
    rmSync(folder, { recursive: true, force: true })
    throw error
  }
}

class PortTaken extends Error {}

export abstract class ServerProcess {
  readonly port: number
  /** Data and log. */
  readonly folder: string
  protected abstract readonly program: Program
  /** What it says if another process listens on its port. */
  protected abstract readonly portTaken: RegExp
  /** Asks for an orderly end. */
  protected readonly endSignal: NodeJS.Signals = 'SIGTERM'
  /** For when its data is not wanted any more. */
  protected readonly stopSignal: NodeJS.Signals = 'SIGKILL'
  readonly #env: Readonly<Record<string, string>> | undefined
  #child: ChildProcess | undefined
  #isPaused = false

  constructor(port: number, folder: string, { env }: ServerOptions) {
    this.port = port
    this.folder = folder
    this.#env = env
  }

  abstract get url(): string
  protected abstract arguments(): readonly string[]
  /** `said`: what it has written to its log since it was started. */
  protected abstract isReady(pid: number, said: string): boolean

  /** The process ends, has ended, or is about to: what was connected to it is of no use any more. */
  protected forgetConnections(): void {}

  /** The folder is about to go. */
  protected async cleanUp(): Promise<void> {}

  /** Neither killed nor paused. */
  get isUp(): boolean {
    return this.#child !== undefined && !hasExited(this.#child) && !this.#isPaused
  }

  get pid(): number {
    return this.#running().pid ?? 0
  }

  get log(): string {
    return existsSync(this.#logFile) ? readFileSync(this.#logFile, 'utf8') : ''
  }

  /** For `restart` and after `kill`; resolves when the server takes connections. */
  async start(): Promise<void> {
    const { name } = this.program
    if (this.#child && !hasExited(this.#child)) throw new Error(`${name} runs already`)
    this.#isPaused = false
    const logLength = this.log.length
    // Into a file: a pipe would fill up, or break when this process is killed.
    const log = openSync(this.#logFile, 'a')
    const child = spawn(pathOf(this.program), this.arguments(), {
      ...unprivileged,
      cwd: this.folder,
      env: { ...process.env, ...this.#env },
      stdio: ['ignore', log, log],
    })
    closeSync(log)
    await once(child, 'spawn')
    track(child, this.folder, `${name}-${this.port}`)
    this.#child = child
    const said = () => this.log.slice(logLength)
    try {
      await this.#ready(child, said)
    } catch (error) {
      await killFamily(child)
      if (this.portTaken.test(said())) throw new PortTaken(`Port ${this.port} is taken`)
      throw new Error(`${name} did not start:\n${said().slice(-2000)}`, { cause: error })
    }
  }

  /** For good: the folder goes too. */
  async stop(): Promise<void> {
    await this.#end(this.stopSignal)
    await this.cleanUp()
    rmSync(this.folder, { recursive: true, force: true })
  }

  /** SIGKILL, for all its processes. */
  async kill(): Promise<void> {
    const child = this.#running()
    this.forgetConnections()
    await killFamily(child)
  }

  /** On the same port and folder. */
  async restart(how: 'stop' | 'kill' = 'stop'): Promise<void> {
    if (how === 'kill') await this.kill()
    else await this.#end(this.endSignal)
    const giveUpAt = performance.now() + READY_MS
    for (;;) {
      try {
        return await this.start()
      } catch (error) {
        if (!(error instanceof PortTaken) || performance.now() > giveUpAt) throw error
        await sleep(50)
      }
    }
  }

  /** SIGSTOP, for all its processes: connections stay open, the kernel still accepts new ones, and nothing is answered. */
  async pause(): Promise<void> {
    this.#isPaused = true
    await pauseFamily(this.#running())
  }

  async resume(): Promise<void> {
    await resumeFamily(this.#running())
    this.#isPaused = false
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  get #logFile(): string {
    return join(this.folder, `${this.program.name}.log`)
  }

  #running(): ChildProcess {
    if (this.#child && !hasExited(this.#child)) return this.#child
    throw new Error(`The ${this.program.name} of port ${this.port} does not run`)
  }

  async #ready(child: ChildProcess, said: () => string): Promise<void> {
    const giveUpAt = performance.now() + READY_MS
    while (!this.isReady(child.pid!, said())) {
      if (hasExited(child)) throw new Error(`It exited with ${child.exitCode ?? child.signalCode}`)
      if (performance.now() > giveUpAt) throw new Error(`Not ready within ${READY_MS} ms`)
      await sleep(5)
    }
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child
    this.forgetConnections()
    if (!child || hasExited(child)) return
    if (signal === 'SIGKILL') return killFamily(child)
    child.kill(signal)
    // A paused one gets the signal only now.
    if (this.#isPaused) await resumeFamily(child)
    const timer = setTimeout(() => void killFamily(child).catch(() => {}), STOP_MS)
    await exited(child)
    clearTimeout(timer)
  }
}
