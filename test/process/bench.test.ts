/** Whether the benchmark runs at all, with what this repository has installed. What it measures is not looked at. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

interface Summary {
  readonly metrics: Record<string, { readonly median: number }>
  readonly trouble?: string
  readonly overlaps: number
}

interface Workload {
  readonly id: string
  readonly primary: string
  readonly contenders: Record<string, Summary>
}

const OURS: Record<string, string> = { sqlite: 'holdfast on libsql', postgres: 'holdfast on pg', etcd: 'holdfast on etcd' }
const root = fileURLToPath(new URL('../..', import.meta.url))
const folder = mkdtempSync(join(process.env['HOLDFAST_TEST_DIR'] ?? tmpdir(), 'holdfast-bench-'))
const json = join(folder, 'results.json')
let code: number | null
let output = ''

beforeAll(async () => {
  const child = spawn(process.execPath, ['bench/run.mjs', '--smoke', '--json', json], { cwd: root })
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (said) => (output += said))
  const [exitCode] = (await once(child, 'close')) as [number | null]
  code = exitCode
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('a smoke run of the benchmark', () => {
  it('ends well, and shows what must be shown', () => {
    expect(code, output).toBe(0)
    expect(output).toContain('## must show')
  })

  it('has a number for everybody at every workload, and no two holders at once', () => {
    const { workloads } = JSON.parse(readFileSync(json, 'utf8')) as { workloads: Workload[] }
    expect(workloads.map(({ id }) => id)).toEqual([
      'alone', 'flight-64', 'convoy-4x4', 'hot-local', 'hot-4x4', 'held', 'grow-keys', 'grow-waiters',
      'sqlite-alone', 'sqlite-8', 'sqlite-hand-over', 'postgres-alone', 'postgres-hand-over', 'etcd-alone', 'etcd-cluster-64', 'etcd-hot-4x4',
      'mutex-alone', 'mutex-64', 'session-churn', 'election-failover', 'stm-transfer', 'stm-transfer-hot',
      'postgres-stm-transfer-hot', 'etcd-mutex-alone', 'etcd-session-churn', 'etcd-election-failover', 'etcd-stm-transfer-hot',
    ])
    for (const { id, primary, contenders } of workloads) {
      expect(contenders, id).toHaveProperty(OURS[id.split('-')[0]!] ?? 'holdfast')
      for (const [name, { metrics, trouble, overlaps }] of Object.entries(contenders)) {
        expect(trouble, `${name} at ${id}`).toBeUndefined()
        expect(metrics[primary]?.median, `${name} at ${id}`).toBeTypeOf('number')
        expect(overlaps, `${name} at ${id}`).toBe(0)
      }
    }
  })
})
