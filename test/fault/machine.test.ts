import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { startRedis } from '../support/redis-server.js'
import { until } from '../support/until.js'
import { canFakeMachines, Machine } from './machine.js'
import { starve } from './starve.js'

const onLinux = it.runIf(canFakeMachines)

onLinux('the clock of a server goes ahead and back, and what is to expire goes by it', async () => {
  const machine = new Machine()
  await using redis = await startRedis({ env: machine.env })
  const timeMs = async () => Number(((await redis.cli('TIME')) as [string])[0]) * 1_000
  await redis.cli('SET', 'k', 1, 'PX', 60_000)
  machine.stepClock(120_000)
  expect(await redis.cli('GET', 'k')).toBeNull()
  expect(Math.abs((await timeMs()) - Date.now() - 120_000)).toBeLessThan(2_000)
  machine.stepClock(-machine.offsetMs)
  expect(Math.abs((await timeMs()) - Date.now())).toBeLessThan(2_000)
})

onLinux('a step moves the wall clock of a Node process, and neither its monotonic clock nor its timers', async () => {
  const machine = new Machine()
  const code = `
    const before = [Date.now(), performance.now()]
    process.stdin.once('data', () => setTimeout(() => {
      console.log(Date.now() - before[0], performance.now() - before[1])
      process.exit()
    }, 50))
    console.log('ready')`
  const child = spawn(process.execPath, ['-e', code], { env: { ...process.env, ...machine.env }, stdio: ['pipe', 'pipe', 'inherit'] })
  await once(child.stdout, 'data')
  machine.stepClock(-600_000)
  child.stdin.write('go\n')
  const [said] = (await once(child.stdout, 'data')) as [Buffer]
  const [wallMs, monotonicMs] = said.toString().trim().split(' ').map(Number)
  expect(wallMs).toBeLessThan(-500_000)
  expect(monotonicMs).toBeGreaterThan(0)
  expect(monotonicMs).toBeLessThan(60_000)
})

onLinux('a full disk ends a Redis that has promised to keep everything, and nothing that it had answered is lost', async () => {
  const machine = new Machine()
  await using redis = await startRedis({ args: ['--appendonly', 'yes', '--appendfsync', 'always'], env: machine.env })
  await redis.cli('SET', 'k', 'kept')
  machine.diskIsFull = true
  await expect(redis.cli('SET', 'k', 'not answered')).rejects.toThrow()
  await until('the server to end', async () => !redis.isUp)
  expect(redis.log).toMatch(/No space left on device/)
  machine.diskIsFull = false
  await redis.start()
  expect(await redis.cli('GET', 'k')).toBe('kept')
})

onLinux('a process that is starved does a fraction of its work, and all of it afterwards', async () => {
  const child = spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' })
  try {
    await once(child, 'spawn')
    const end = starve(child.pid!, 0.1)
    const before = cpuMs(child.pid!)
    await sleep(1_000)
    const starved = cpuMs(child.pid!) - before
    end()
    await until('it to run', async () => cpuMs(child.pid!) - before > 3 * starved)
    expect(starved).toBeLessThan(400)
  } finally {
    child.kill('SIGKILL')
  }
})

it('a process that is gone can be starved no more, which is no error', () => {
  expect(() => starve(2 ** 22, 0.1)()).not.toThrow()
})

/** What it has used of a processor. */
function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}
