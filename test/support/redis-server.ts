/** A private redis-server on loopback, for one test file. It keeps nothing on disk unless told to. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, existsSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort } from './ports.js'
import { exited, hasExited, killAndWait, makeFolder, pauseProcess, resumeProcess, track } from './processes.js'
import { RespConnection, type Reply } from './resp.js'

export interface RedisOptions {
  /** A free one, if not given. */
  readonly port?: number
  /** Further arguments; of contradicting ones the last counts. */
  readonly args?: readonly string[]
  readonly password?: string
  readonly binary?: string
  /** A node of a cluster, which knows no other yet. Its bus gets a free port too: by default it is 10,000 above. */
  readonly cluster?: boolean
  /** What is in the configuration file at the first start: a Sentinel wants one, and writes it anew. */
  readonly config?: string
  /** On top of ours. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

/** One line of MONITOR. */
export interface MonitoredCommand {
  /** Lower case. */
  readonly name: string
  readonly args: readonly string[]
  /** Whether a script called it, rather than a client. */
  readonly fromScript: boolean
}

export interface Monitor {
  readonly commands: readonly MonitoredCommand[]
  /** Resolves when everything sent before this call is in `commands`. */
  flush(): Promise<void>
  stop(): void
}

const READY_MS = 15_000
const STOP_MS = 3_000

export async function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  const folder = makeFolder('redis')
  for (let attempt = 0; ; attempt++) {
    const clusterPort = options.cluster ? await freePort() : undefined
    const server = new RedisServer(options.port ?? (await freePort()), folder, options, clusterPort)
    try {
      await server.start()
      return server
    } catch (error) {
      if (error instanceof PortTaken && options.port === undefined && attempt < 20) continue
      rmSync(folder, { recursive: true, force: true })
      throw error
    }
  }
}

class PortTaken extends Error {}

export class RedisServer {
  readonly port: number
  /** Data and log. */
  readonly folder: string
  readonly clusterPort: number | undefined
  readonly #options: RedisOptions
  readonly #monitors = new Set<Monitor>()
  #child: ChildProcess | undefined
  #isPaused = false

  constructor(port: number, folder: string, options: RedisOptions, clusterPort?: number) {
    this.port = port
    this.folder = folder
    this.clusterPort = clusterPort
    this.#options = options
  }

  /** Neither killed nor paused. */
  get isUp(): boolean {
    return this.#child !== undefined && !hasExited(this.#child) && !this.#isPaused
  }

  get url(): string {
    const { password } = this.#options
    return `redis://${password === undefined ? '' : `:${encodeURIComponent(password)}@`}127.0.0.1:${this.port}`
  }

  get pid(): number {
    return this.#running().pid ?? 0
  }

  get log(): string {
    return existsSync(this.#logFile) ? readFileSync(this.#logFile, 'utf8') : ''
  }

  /** For `restart` and after `kill` or `stop`; resolves when the server answers. */
  async start(): Promise<void> {
    const { args = [], password, binary = 'redis-server', env } = this.#options
    if (this.#child && !hasExited(this.#child)) throw new Error('redis-server runs already')
    this.#isPaused = false
    const own = [...this.#config(), '--port', String(this.port), '--bind', '127.0.0.1', '--dir', this.folder]
    if (this.clusterPort !== undefined) own.push('--cluster-enabled', 'yes', '--cluster-port', String(this.clusterPort))
    const auth = password === undefined ? [] : ['--requirepass', password]
    const logLength = this.log.length
    // Into a file: a pipe would fill up, or break when this process is killed.
    const log = openSync(this.#logFile, 'a')
    const child = spawn(binary, [...own, '--save', '', '--appendonly', 'no', ...auth, ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', log, log],
    })
    closeSync(log)
    await spawned(child, binary)
    track(child, this.folder, `redis-${this.port}`)
    this.#child = child
    try {
      await this.#ready(child)
    } catch (error) {
      await killAndWait(child)
      const said = this.log.slice(logLength)
      if (/Address already in use/.test(said)) throw new PortTaken(`Port ${this.port} is taken`)
      throw new Error(`redis-server did not start:\n${said.slice(-2000)}`, { cause: error })
    }
  }

  /** For good: the folder goes too. */
  async stop(): Promise<void> {
    for (const monitor of this.#monitors) monitor.stop()
    await this.#end()
    rmSync(this.folder, { recursive: true, force: true })
  }

  /** SIGKILL. */
  async kill(): Promise<void> {
    await killAndWait(this.#running())
  }

  /** On the same port and folder. Without persistence all data is gone. */
  async restart(how: 'stop' | 'kill' = 'stop'): Promise<void> {
    if (how === 'kill') await this.kill()
    else await this.#end()
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

  /** SIGSTOP: connections stay open, the kernel still accepts new ones, and nothing is answered. Keys go on expiring. */
  async pause(): Promise<void> {
    this.#isPaused = true
    await pauseProcess(this.#running())
  }

  async resume(): Promise<void> {
    await resumeProcess(this.#running())
    this.#isPaused = false
  }

  /** One command over a connection of its own, as redis-cli does it. An error reply rejects. */
  async cli(...args: (string | number)[]): Promise<Reply> {
    const connection = await this.#connect()
    try {
      return await connection.call(...args)
    } finally {
      connection.close()
    }
  }

  async info(section: string): Promise<Record<string, string>> {
    return parseInfo(await this.cli('INFO', section))
  }

  /** Until a replica of this server has everything that was written here before this call. */
  async replicatedTo(replica: RedisServer): Promise<void> {
    const written = Number((await this.info('replication'))['master_repl_offset'])
    const giveUpAt = performance.now() + READY_MS
    while (Number((await replica.info('replication'))['slave_repl_offset']) < written) {
      if (performance.now() > giveUpAt) throw new Error(`The replica of port ${replica.port} does not catch up`)
      await sleep(5)
    }
  }

  /**
   * How often each command ran since the start or `resetStats`, in lower case; subcommands as `client|setname`. What
   * scripts call counts as well; use `monitor` to tell them apart.
   */
  async commandCounts(): Promise<Record<string, number>> {
    const counts: Record<string, number> = {}
    for (const [name, stats] of Object.entries(await this.info('commandstats'))) {
      const calls = /^calls=(\d+)/.exec(stats)?.[1]
      if (calls !== undefined) counts[name.replace('cmdstat_', '')] = Number(calls)
    }
    // Of asking itself.
    delete counts['info']
    delete counts['config|resetstat']
    return counts
  }

  async resetStats(): Promise<void> {
    await this.cli('CONFIG', 'RESETSTAT')
  }

  /** The connections of others: the fields of CLIENT LIST (`id`, `addr`, `name`, `cmd`, `sub` …). */
  async clients(): Promise<Record<string, string>[]> {
    const connection = await this.#connect()
    try {
      const ownId = String(await connection.call('CLIENT', 'ID'))
      const lines = String(await connection.call('CLIENT', 'LIST')).trim().split('\n')
      return lines
        .map((line) => Object.fromEntries(line.split(' ').map((field) => cutAt(field, '='))))
        .filter((client) => client['id'] !== ownId)
    } finally {
      connection.close()
    }
  }

  /** Records what clients send from now on. It costs the server about half its speed. */
  async monitor(): Promise<Monitor> {
    const commands: MonitoredCommand[] = []
    const marks = new Map<string, () => void>()
    const connection = await this.#connect((value) => {
      const command = parseMonitorLine(String(value))
      if (!command) return
      const mark = command.name === 'echo' ? marks.get(command.args[0] ?? '') : undefined
      if (mark) mark()
      else commands.push(command)
    })
    await connection.call('MONITOR')
    const monitor: Monitor = {
      commands,
      flush: async () => {
        // Its own echo comes after everything that the server did before.
        const text = `flush-${process.pid}-${Math.random()}`
        const seen = new Promise<void>((resolve) => marks.set(text, resolve))
        await this.cli('ECHO', text)
        await seen
        marks.delete(text)
      },
      stop: () => {
        this.#monitors.delete(monitor)
        connection.close()
      },
    }
    this.#monitors.add(monitor)
    return monitor
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  get #logFile(): string {
    return join(this.folder, 'redis.log')
  }

  #config(): string[] {
    const { config } = this.#options
    if (config === undefined) return []
    const file = join(this.folder, 'redis.conf')
    if (!existsSync(file)) writeFileSync(file, config)
    return [file]
  }

  #running(): ChildProcess {
    if (!this.#child || hasExited(this.#child)) throw new Error(`The redis-server of port ${this.port} does not run`)
    return this.#child
  }

  #connect(onUnasked?: (value: Reply) => void): Promise<RespConnection> {
    const { password } = this.#options
    return RespConnection.open({ port: this.port, password, ...(onUnasked && { onUnasked }) })
  }

  async #ready(child: ChildProcess): Promise<void> {
    const giveUpAt = performance.now() + READY_MS
    for (;;) {
      if (hasExited(child)) throw new Error(`It exited with ${child.exitCode ?? child.signalCode}`)
      try {
        // Whoever answers may be another server that was quicker to take the port.
        const { process_id, loading } = { ...(await this.info('server')), ...(await this.info('persistence')) }
        if (Number(process_id) === child.pid && loading !== '1') return
      } catch (error) {
        if (performance.now() > giveUpAt) throw error
      }
      if (performance.now() > giveUpAt) throw new Error(`Not ready within ${READY_MS} ms`)
      await sleep(5)
    }
  }

  async #end(): Promise<void> {
    const child = this.#child
    if (!child || hasExited(child)) return
    child.kill('SIGTERM')
    // A paused one gets the SIGTERM only now.
    child.kill('SIGCONT')
    // With replicas behind it a server waits up to ten seconds for them.
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    await exited(child)
    clearTimeout(timer)
  }
}

async function spawned(child: ChildProcess, binary: string): Promise<void> {
  try {
    await once(child, 'spawn')
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ENOENT')) throw error
    throw new Error(
      `${binary} was not found. The tests start their own Redis: apt-get install redis-server, or brew install redis.`,
      { cause: error },
    )
  }
}

function parseInfo(reply: Reply): Record<string, string> {
  const lines = String(reply).split('\r\n')
  return Object.fromEntries(lines.filter((line) => line.includes(':')).map((line) => cutAt(line, ':')))
}

function cutAt(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator)
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)]
}

/** `1700000000.123456 [0 127.0.0.1:50000] "set" "key" "a \"quoted\" \x00 value"`, with `[0 lua]` for scripts. */
function parseMonitorLine(line: string): MonitoredCommand | undefined {
  const head = /^[\d.]+ \[\d+ ([^\]]+)\] /.exec(line)
  if (!head) return undefined
  const words = [...line.slice(head[0].length).matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(([, word = '']) => unescape(word))
  const [name = '', ...args] = words
  return { name: name.toLowerCase(), args, fromScript: head[1] === 'lua' }
}

const ESCAPES: Record<string, string> = { n: '\n', r: '\r', t: '\t', a: '\x07', b: '\b' }

function unescape(word: string): string {
  const bytes = word.replace(/\\(?:x([0-9a-f]{2})|(.))/gi, (_, hex: string | undefined, character: string) =>
    hex === undefined ? (ESCAPES[character] ?? character) : String.fromCharCode(Number.parseInt(hex, 16)),
  )
  // MONITOR escapes every byte of a multi-byte character.
  return Buffer.from(bytes, 'latin1').toString('utf8')
}
