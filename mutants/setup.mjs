/** Runs before each file of tests. */
import fc from 'fast-check'
import { beforeEach } from 'vitest'

// The same schedules in every run: else a mutant that is hard to find would live one day and die the next.
fc.configureGlobal({ ...fc.readConfigureGlobal(), seed: 1 })

/**
 * About what large numbers cost, and one that tries as many schedules as interleavings.test.ts. They take longer than all others
 * together, so long that on a busy machine one of them would seem to hang, and a mutant would pass for killed that was not.
 */
const LARGE = new Set([
  'takes as short a time for each of forty thousand that were not sent yet',
  'costs ten thousand callers twenty requests',
  'waits without limit unless it is told otherwise',
  'nothing stays behind: no timer but two, no listener, no request',
  'has a token that no other has',
  'no two hold at the same time, nobody believes in a lock beyond its deadline, and nothing stays behind',
  'of more than a thousand locks travel in requests of a thousand'
])

beforeEach(({ task, skip }) => skip(LARGE.has(task.name)))
