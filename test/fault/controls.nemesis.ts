/** The controls: all of them in `npm run nemesis`, else one, in turn by the day. */
import { describe, expect, it } from 'vitest'
import { CONTROLS } from './controls.js'
import { run } from './run.js'

const FAULTS_MS = 120_000
const SLACK_MS = 120_000

const asked = process.env['HOLDFAST_CONTROLS']
const chosen = asked === undefined ? [ofToday()] : CONTROLS.filter(({ name }) => name.includes(asked))

function ofToday() {
  const sure = CONTROLS.filter(({ isSeldom }) => !isSeldom)
  return sure[Math.floor(Date.now() / 86_400_000) % sure.length]!
}

describe('the nemesis finds', () => {
  it.each(chosen)('$name', { timeout: FAULTS_MS + SLACK_MS }, async (control) => {
    const { breaks } = control
    const { violations } = await run({ backend: 'redis', seed: 1, faultsMs: FAULTS_MS, untilBroken: breaks, ...(await control.options()) })
    expect(violations.map(({ invariant }) => invariant)).toContain(breaks)
  })
})
