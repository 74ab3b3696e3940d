/** What can be wrong with the slots that a claim asks for, in the same words on every store. */
import { ALL_SLOTS, type Claim, type Failed } from './backend.js'
import { ConfigurationError } from './errors.js'

/** Undefined if it can be that it holds one day. */
export function neverHolds({ resource, take, limit }: Claim): Failed | undefined {
  if (isCount(take) && isCount(limit) && take <= limit) return undefined
  return failed(`A claim on ${JSON.stringify(resource)} takes ${take} of ${limit} slots, so it can never hold.`)
}

/** All claims on a resource that is in use have one limit. */
export function anotherLimit({ resource, limit }: Claim, inUse: number): Failed {
  return failed(`${JSON.stringify(resource)} is in use with a limit of ${inUse}, so a claim with a limit of ${limit} cannot join. `
    + 'Use one limit for it everywhere; it can change while nobody holds it or waits for it.')
}

function isCount(value: number): boolean {
  return Number.isSafeInteger(value) && value > 0 && value <= ALL_SLOTS
}

function failed(message: string): Failed {
  return { status: 'failed', error: new ConfigurationError(message) }
}
