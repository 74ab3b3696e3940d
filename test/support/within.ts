import { within as inTime } from '../../src/testing/managers.js'

/** Rejects if it takes longer: a test that hangs says nothing. */
export function within<T>(ms: number, what: string, work: Promise<T>): Promise<T> {
  return inTime(what, work, ms)
}
