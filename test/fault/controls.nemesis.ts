/** The controls: all of them in `npm run nemesis`, else a few, in turn by the day. */
import { describe, expect, it } from 'vitest'
import { CONTROLS } from './controls.js'
import { run } from './run.js'

const PER_RUN = 2
const FAULTS_MS = 60_000

const today = Math.floor(Date.now() / 86_400_000)
const asked = process.env['HOLDFAST_CONTROLS']
const chosen = asked !== undefined ? CONTROLS.filter(({ name }) => name.includes(asked)) : Array.from({ length: PER_RUN }, (_, i) => CONTROLS[(today * PER_RUN + i) % CONTROLS.length]!)

describe('the nemesis finds', () => {
  it.each(chosen)('$name', { timeout: 180_000 }, async (control) => {
    const { breaks } = control
    const { violations } = await run({ backend: 'redis', seed: 1, faultsMs: FAULTS_MS, untilBroken: breaks, ...(await control.options()) })
    expect(violations.map(({ invariant }) => invariant)).toContain(breaks)
  })
})
