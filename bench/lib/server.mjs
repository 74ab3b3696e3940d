/** A private redis-server on loopback that keeps nothing on disk, and what it says about itself. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { startOnFreePort, whileRunning } from './running.mjs'

const READY_MS = 15_000
const SCRIPTS = ['eval', 'evalsha', 'eval_ro', 'evalsha_ro', 'fcall', 'fcall_ro']

export async function withRedis(parentFolder, body) {
  const folder = join(parentFolder, 'redis')
  mkdirSync(folder, { recursive: true })
  return whileRunning(await startOnFreePort((port) => tryToStart(port, folder)), body)
}

async function tryToStart(port, folder) {
  const logFile = join(folder, `${port}.log`)
  const log = openSync(logFile, 'w')
  const args = ['--port', port, '--bind', '127.0.0.1', '--dir', folder, '--save', '', '--appendonly', 'no']
  const child = spawn('redis-server', args.map(String), { stdio: ['ignore', log, log] })
  await once(child, 'spawn')
  // Tells the cleaning up after a run that was killed what to kill.
  const pidFile = join(folder, 'redis.pid')
  writeFileSync(pidFile, String(child.pid))
  const exited = once(child, 'exit')
  try {
    const client = await connect(port, child)
    // Whoever answers may be another server that was quicker to take the port.
    const info = await client.info('server')
    if (!info.includes(`process_id:${child.pid}\r`)) throw new Error('Address already in use')
    return new Server(port, child, exited, client, pidFile)
  } catch (error) {
    child.kill('SIGKILL')
    throw new Error(`redis-server did not start: ${error.message}\n${readFileSync(logFile, 'utf8').slice(-1000)}`)
  }
}

class Server {
  constructor(port, child, exited, client, pidFile) {
    Object.assign(this, { port, child, exited, client, pidFile, url: `redis://127.0.0.1:${port}` })
  }

  async stop() {
    this.client.disconnect()
    this.child.kill('SIGTERM')
    const timer = setTimeout(() => this.child.kill('SIGKILL'), 3_000)
    await this.exited
    clearTimeout(timer)
    rmSync(this.pidFile, { force: true })
  }

  async version() {
    return /redis_version:(\S+)/.exec(await this.client.info('server'))?.[1]
  }

  async empty() {
    await this.client.flushall()
  }

  async countKeys() {
    return this.client.dbsize()
  }

  /** Counters since the start: take two, and what happened in between is their difference. */
  async counters() {
    const [cpu, stats] = await Promise.all([this.client.info('cpu'), this.client.info('commandstats')])
    const takenAt = performance.now()
    const calls = {}
    for (const [, name, count] of stats.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm)) {
      if (name !== 'info') calls[name] = Number(count)
    }
    const seconds = (name) => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(cpu)?.[1])
    return { takenAt, calls, cpuMs: 1000 * (seconds('used_cpu_user') + seconds('used_cpu_sys')) }
  }
}

/**
 * What happened between two snapshots: scripts as clients called them; all commands, also those that scripts called;
 * and requests, which are scripts and what the contender sends besides them.
 */
export function between(before, after, direct = []) {
  const count = (names) => names.reduce((sum, name) => sum + (after.calls[name] ?? 0) - (before.calls[name] ?? 0), 0)
  const scripts = count(SCRIPTS)
  return {
    elapsedMs: after.takenAt - before.takenAt,
    scripts,
    requests: scripts + count(direct),
    commands: count(Object.keys(after.calls)),
    cpuMs: after.cpuMs - before.cpuMs
  }
}

/** It does not reconnect: if the server goes away in the middle of a run, commands must fail and not wait. */
async function connect(port, child) {
  const giveUpAt = performance.now() + READY_MS
  for (;;) {
    const client = new Redis({ port, host: '127.0.0.1', lazyConnect: true, retryStrategy: () => null })
    client.on('error', () => {})
    try {
      await client.connect()
      return client
    } catch (error) {
      if (child.exitCode !== null || performance.now() > giveUpAt) throw error
      await sleep(20)
    }
  }
}
