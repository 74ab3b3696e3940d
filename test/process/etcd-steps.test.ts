/** etcd: answers that are lost or late, and leases that end at the worst moment. */
import { randomBytes } from 'node:crypto'
import { setImmediate as turnOfTheLoop, setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { EtcdBackend } from '../../src/backends/etcd/backend.js'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { CODE, EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { TimeToLive, TxnRequest, TxnResponse } from '../../src/backends/etcd/client/messages.js'
import type { Claim, WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
import { tokenOf } from '../../src/core/token.js'
import { createLocks, Mutex } from '../../src/index.js'
import { deferred } from '../support/deferred.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'

const PREFIX = 'steps'
let server: EtcdServer
let raw: EtcdClient

beforeAll(async () => {
  server = await startEtcd()
  raw = createEtcdClient({ endpoints: [server.endpoint] })
})
afterAll(async () => {
  await raw.close()
  await server.stop()
})

/** One process, of which the way to etcd and the clock can be disturbed. */
class Party {
  readonly owner = randomBytes(6).toString('hex')
  readonly heard: WakeUp[] = []
  readonly client: EtcdClient
  readonly backend: EtcdBackend
  aheadMs = 0
  /** What becomes of a transaction. */
  onTxn: (run: () => Promise<TxnResponse>, request: TxnRequest) => Promise<TxnResponse> = (run) => run()
  onRevoke: (run: () => Promise<void>) => Promise<void> = (run) => run()
  onTimeToLive: (run: () => Promise<TimeToLive>) => Promise<TimeToLive> = (run) => run()
  onKeepAlive: (run: () => Promise<number>) => Promise<number> = (run) => run()
  onWake: (wakeUp: WakeUp) => void = () => {}

  constructor() {
    const client = createEtcdClient({ endpoints: [server.endpoint] })
    this.client = {
      range: (request) => client.range(request),
      txn: (request) => this.onTxn(() => client.txn(request), request),
      leaseGrant: (ttlS, id) => client.leaseGrant(ttlS, id),
      leaseRevoke: (id) => this.onRevoke(() => client.leaseRevoke(id)),
      leaseTimeToLive: (id, withKeys) => this.onTimeToLive(() => client.leaseTimeToLive(id, withKeys)),
      keepAlive: (id, silentMs) => this.onKeepAlive(() => client.keepAlive(id, silentMs)),
      watch: (request, listener) => client.watch(request, listener),
      trouble: undefined,
      close: () => client.close(),
    }
    const clock = systemClock()
    const scope = {
      prefix: PREFIX, owner: this.owner, retryMs: 100, warn: () => {},
      clock: { now: () => clock.now() + this.aheadMs, timer: clock.timer.bind(clock) },
      wake: (wakeUp: WakeUp) => {
        this.heard.push(wakeUp)
        this.onWake(wakeUp)
      },
    }
    this.backend = new EtcdBackend(this.client, scope)
    onTestFinished(() => this.backend.close())
  }

  async claim(claim: Claim, ifBusy: 'queue' | 'leave' = 'queue') {
    return (await this.backend.claim([claim], ifBusy))[0]!
  }

  async renew(claim: Claim, ttlMs: number, exact = false, from?: string) {
    return (await this.backend.renew([{ claim, ttlMs, exact, ...(from !== undefined && { from }) }]))[0]!
  }

  async release(claim: Claim) {
    return (await this.backend.release([claim]))[0]!
  }

  told(kind: WakeUp['kind']): boolean {
    return this.heard.some((one) => one.kind === kind)
  }
}

function claimOn(resource: string, ttlMs = 30_000, limit = 1): Claim {
  return { id: randomBytes(16).toString('hex'), resource, take: 1, limit, ttlMs }
}

async function keysOf(resource: string) {
  const { kvs } = await raw.range({ key: Buffer.from(`${PREFIX}/${resource}/`), rangeEnd: Buffer.from(`${PREFIX}/${resource}0`) })
  return kvs
}

/** A put there, or anywhere: of claims, or of the mailboxes of leases, whenever these get to it. */
const hasPut = ({ success = [] }: TxnRequest, resource = ''): boolean =>
  success.some((op) => (op.kind === 'put' && Buffer.from(op.key).includes(resource)) || (op.kind === 'txn' && hasPut(op as TxnRequest, resource)))

function lost(): EtcdError {
  return new EtcdError('etcd: nothing heard', { code: CODE.deadlineExceeded, reason: 'timeout', mayBeDone: true, transient: true })
}

/** Carries it out, and loses the answer. */
async function loseAnswer(run: () => Promise<TxnResponse>): Promise<TxnResponse> {
  await run()
  throw lost()
}

describe('a claim', () => {
  it('whose lease is renewed for it does not wait for what others want to know of that lease', async () => {
    const party = new Party()
    const older = claimOn('looked after')
    await party.claim(older)
    party.aheadMs = 2_000
    const looked = deferred()
    party.onTimeToLive = (run) => looked.promise.then(run)
    const renewed = party.renew(older, 30_000)
    expect(await within(1_000, 'the claim', party.claim(claimOn('covered by it')))).toMatchObject({ status: 'held' })
    looked.reject(lost())
    expect(await renewed).toMatchObject({ status: 'failed' })
  })

  it('whose answer is lost, and that nobody asks for again, ends at its TTL', async () => {
    const party = new Party()
    await party.claim(claimOn('keeps the lease alive', 2_000))
    party.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    expect(await party.claim(claimOn('unheard', 2_000))).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    await sleep(3_000)
    expect(await keysOf('unheard')).toEqual([])
  })

  it('whose time is over counts for no transaction, though nobody has got to delete its key', async () => {
    const party = new Party()
    const claim = claimOn('overdue')
    const state = await party.claim(claim)
    const commit = {
      holds: [{ claim, epoch: state.status === 'held' ? state.epoch : 0n }],
      comparisons: [], puts: [{ key: 'overdue', value: Buffer.from('v') }], deletes: [], reads: [],
    }
    expect(await party.backend.store.commit(commit)).toMatchObject({ status: 'committed' })
    party.aheadMs = claim.ttlMs
    expect(await party.backend.store.commit(commit)).toEqual({ status: 'not-held', claim })
    expect(await keysOf('overdue')).toHaveLength(1)
  })

  it('does not come to wait behind itself if only the renewal of its lease fails', async () => {
    const party = new Party()
    await party.claim(claimOn('an older one'))
    const claim = claimOn('not behind itself')
    party.aheadMs = 2_000
    party.onKeepAlive = async () => {
      await sleep(200)
      throw new EtcdError('etcd: away', { code: CODE.unavailable, reason: 'unreachable', transient: true })
    }
    expect(await party.claim(claim)).toMatchObject({ status: 'failed' })
    party.onKeepAlive = (run) => run()
    expect(await party.claim(claim)).toMatchObject({ status: 'held' })
    expect(await keysOf('not behind itself')).toHaveLength(1)
  })

  it('that is told of its grant late and asks again either has its key, or has none', async () => {
    const [first, party] = [new Party(), new Party()]
    const [before, claim] = [claimOn('late'), claimOn('late', 2_000)]
    await first.claim(before)
    expect(await party.claim(claim)).toMatchObject({ status: 'queued' })
    await sleep(300)
    // As after a suspend: its TTL is over, its lease is not.
    party.aheadMs = 2_300
    party.onKeepAlive = async (run) => {
      await sleep(200)
      return run()
    }
    const asked = new Promise((resolve) => {
      // It is told to look, or that it holds since a time that is long over.
      party.onWake = ({ kind }) => void (['granted', 'look'].includes(kind) && resolve(party.claim(claim)))
    })
    await first.release(before)
    expect(await asked).toMatchObject({ status: 'held' })
    expect(await keysOf('late')).toHaveLength(1)
    expect(await party.renew(claim, 2_000)).toMatchObject({ status: 'held' })
  })

  it('whose lease ends while the answer is on its way waits on another', async () => {
    const [first, party] = [new Party(), new Party()]
    await first.claim(claimOn('on its way'))
    await party.claim(claimOn('makes the lease'))
    party.onTxn = async (run, request) => {
      const answer = await run()
      if (!hasPut(request)) return answer
      party.onTxn = (again) => again()
      const [{ lease }] = await keysOf('makes the lease') as unknown as [{ lease: bigint }]
      await raw.leaseRevoke(lease)
      await until('the end of the lease', async () => party.told('lost'))
      return answer
    }
    expect(await party.claim(claimOn('on its way'))).toMatchObject({ status: 'queued' })
    expect(await keysOf('on its way')).toHaveLength(2)
  })

  it('whose answer is lost, and whose lease has ended by the time that it asks again, asks on another', async () => {
    const [first, party] = [new Party(), new Party()]
    await first.claim(claimOn('once more'))
    await party.claim(claimOn('has the lease'))
    const claim = claimOn('once more')
    party.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    expect(await party.claim(claim)).toMatchObject({ status: 'failed' })
    party.onTxn = async (run) => {
      party.onTxn = (again) => again()
      const [{ lease }] = await keysOf('has the lease') as unknown as [{ lease: bigint }]
      await raw.leaseRevoke(lease)
      return run()
    }
    expect(await party.claim(claim)).toMatchObject({ status: 'queued' })
    expect(await keysOf('once more')).toHaveLength(2)
  })

  it('whose request was lost, and that asks again without wanting to wait, gets a slot that is free', async () => {
    const [first, party] = [new Party(), new Party()]
    await first.claim(claimOn('a slot left', 30_000, 2))
    const claim = claimOn('a slot left', 30_000, 2)
    party.onTxn = async (run, request) => {
      if (hasPut(request)) throw lost()
      return run()
    }
    expect(await party.claim(claim, 'leave')).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    expect(await party.claim(claim, 'leave')).toMatchObject({ status: 'held' })
    expect(await party.claim(claimOn('a slot left', 30_000, 2), 'leave')).toMatchObject({ status: 'refused' })
  })

  it('that is being asked for again when its backend is closed is not made anew', async () => {
    const [first, party] = [new Party(), new Party()]
    await first.claim(claimOn('closed meanwhile'))
    const claim = claimOn('closed meanwhile')
    party.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    await party.claim(claim)
    const [asked, closing, failing] = [deferred(), deferred(), deferred()]
    party.onRevoke = async (run) => {
      closing.resolve()
      await failing.promise
      await again
      return run()
    }
    party.onTxn = async (run, request) => {
      if (!hasPut(request)) return run()
      party.onTxn = (later) => later()
      asked.resolve()
      await failing.promise
      throw lost()
    }
    const again = party.claim(claim)
    await asked.promise
    const closed = party.backend.close()
    // By now it takes no lease for good any more.
    await closing.promise
    failing.resolve()
    expect(await again).toMatchObject({ status: 'failed' })
    await closed
    expect(await keysOf('closed meanwhile')).toHaveLength(1)
  })
})

describe('of several claims that travel together, on two leases', () => {
  it('all are held, though one of the leases has ended on their way, and the other goes on', async () => {
    const party = new Party()
    const [short, long] = [claimOn('on the one'), claimOn('on the other one', 60_000)]
    await Promise.all([party.claim(short), party.claim(long)])
    const leaseOf = async ({ resource }: Claim) => (await keysOf(resource))[0]?.lease
    const [ended, alive] = [(await leaseOf(short))!, (await leaseOf(long))!]
    const puts: number[] = []
    party.onTxn = async (run, request) => {
      if (hasPut(request)) puts.push(request.success!.filter(({ kind }) => kind === 'put').length)
      if (puts.length === 1) await raw.leaseRevoke(ended)
      return run()
    }
    const claims = [30_000, 60_000].flatMap((ttlMs) => [0, 1, 2].map((i) => claimOn(`batch ${ttlMs} ${i}`, ttlMs)))
    const states = await party.backend.claim(claims, 'queue')
    expect(puts[0]).toBe(6)
    expect(states.map(({ status }) => status)).toEqual(claims.map(() => 'held'))
    const leases = await Promise.all(claims.map(leaseOf))
    expect(leases.slice(3)).toEqual([alive, alive, alive])
    expect(new Set(leases.slice(0, 3)).size).toBe(1)
    expect(leases).not.toContain(ended)
    expect(leases).not.toContain(undefined)
    expect(await party.renew(long, 60_000)).toMatchObject({ status: 'held' })
  })
})

describe('taken over', () => {
  async function given(resource: string) {
    const [giver, taker] = [new Party(), new Party()]
    const [claim, theirs] = [claimOn(resource, 2_000), claimOn(resource, 2_000)]
    const state = await giver.claim(claim)
    await taker.claim(claimOn(`${resource} of another`, 2_000))
    const token = tokenOf(claim.id, (state as { epoch: bigint }).epoch, giver.owner)
    taker.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    expect(await taker.renew(theirs, 2_000, false, token)).toMatchObject({ status: 'failed' })
    taker.onTxn = (run) => run()
    return { taker, theirs, token }
  }

  it('with an answer that is lost: asked again, it is held', async () => {
    const { taker, theirs, token } = await given('adopted twice')
    expect(await taker.renew(theirs, 2_000, false, token)).toMatchObject({ status: 'held' })
    expect(await taker.release(theirs)).toEqual({ status: 'released' })
  })

  it('with an answer that is lost: not asked again, it ends at its TTL', async () => {
    await given('adopted once')
    await sleep(3_000)
    expect(await keysOf('adopted once')).toEqual([])
  })
})

describe('to another lease', () => {
  it('an extension and a renewal at the same time are both heard', async () => {
    const party = new Party()
    const claim = claimOn('both')
    await party.claim(claim)
    const states = await Promise.all([party.renew(claim, 60_000, true), party.renew(claim, 60_000), party.renew(claim, 30_000)])
    expect(states.map(({ status }) => status)).toEqual(['held', 'held', 'held'])
    expect(party.told('lost')).toBe(false)
  })

  it('what is on the way there is not lost, whatever the old lease says', async () => {
    const party = new Party()
    const [claim, other] = [claimOn('on the way'), claimOn('beside it')]
    await Promise.all([party.claim(claim), party.claim(other)])
    party.onTxn = async (run, request) => {
      const answer = await run()
      if (hasPut(request)) await sleep(400)
      return answer
    }
    const extending = party.renew(claim, 60_000, true)
    await sleep(200)
    expect(await party.renew(other, 30_000)).toMatchObject({ status: 'held' })
    expect(await extending).toMatchObject({ status: 'held' })
    expect(party.told('lost')).toBe(false)
  })

  it('if that ends before the answer is there, so does the claim', async () => {
    const party = new Party()
    const [claim, other] = [claimOn('its end'), claimOn('on the other', 60_000)]
    await Promise.all([party.claim(claim), party.claim(other)])
    const [{ lease }] = await keysOf('on the other') as unknown as [{ lease: bigint }]
    party.onTxn = async (run, request) => {
      const answer = await run()
      if (!hasPut(request) || !party.onTxn) return answer
      party.onTxn = (again) => again()
      await raw.leaseRevoke(lease)
      await until('the loss of the other', async () => party.told('lost'))
      return answer
    }
    await party.renew(claim, 60_000, true)
    expect(await keysOf('its end')).toEqual([])
    expect(await party.renew(claim, 60_000)).toEqual({ status: 'lost' })
  })

  it('if that has ended before it gets there, it may be tried again, and the claim is held', async () => {
    const party = new Party()
    const [claim, other] = [claimOn('stays'), claimOn('has the other lease', 60_000)]
    await Promise.all([party.claim(claim), party.claim(other)])
    const [{ lease }] = await keysOf('has the other lease') as unknown as [{ lease: bigint }]
    party.onTxn = async (run, request) => {
      if (!hasPut(request, 'stays')) return run()
      party.onTxn = (again) => again()
      await raw.leaseRevoke(lease)
      return run()
    }
    expect(await party.renew(claim, 60_000, true)).toMatchObject({ status: 'failed', error: { transient: true } })
    expect(await party.renew(claim, 60_000, true)).toMatchObject({ status: 'held' })
    expect(await party.release(claim)).toEqual({ status: 'released' })
  })

  it('what is released while nobody knows whether it got there is free at once', async () => {
    const party = new Party()
    const claim = claimOn('there or not')
    await party.claim(claim)
    party.onTxn = loseAnswer
    expect(await party.renew(claim, 60_000, true)).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(await keysOf('there or not')).toEqual([])
  })
})

describe('revoked', () => {
  it.each(['told', 'now'] as const)('before the answer to its claim has come: hears of it all the same (%s)', async (when) => {
    const [party, other] = [new Party(), new Party()]
    await party.claim(claimOn('warm'))
    await sleep(100)
    const revoked = deferred()
    party.onTxn = async (run, request) => {
      const answer = await run()
      if (hasPut(request, 'overtaken')) await revoked.promise
      return answer
    }
    const claim = claimOn(`overtaken ${when}`)
    const claimed = party.claim(claim)
    await until('it to be there', async () => (await keysOf(claim.resource)).length === 1)
    await other.backend.revoke(claim.resource, when)
    const kind = when === 'told' ? 'revoked' : 'lost'
    await until('it to hear', async () => party.heard.some((one) => one.kind === kind && one.claimId === claim.id))
    revoked.resolve()
    await claimed
    // Whoever has heard of it asks again.
    expect((await party.claim(claim)).status).toBe(when === 'told' ? 'revoked' : 'held')
    if (when === 'now') expect((await keysOf(claim.resource)).map(({ createRevision }) => createRevision)).toHaveLength(1)
  })

  it('by one that closes at once: its holder is told', async () => {
    const [holder, other] = [new Party(), new Party()]
    await holder.claim(claimOn('told'))
    await sleep(200)
    other.onTxn = async (run) => {
      await sleep(50)
      return run()
    }
    expect(await other.backend.revoke('told', 'told')).toBe('told')
    await other.backend.close()
    await until('the holder to hear of it', async () => holder.told('revoked'))
  })

  it('before its mailbox was watched, or when there was none: its holder is told', async () => {
    const [holder, other] = [new Party(), new Party()]
    const claim = claimOn('no mailbox', 2_000)
    holder.onTxn = async (run, request) => {
      // The mailbox is the first of what is put on a lease.
      if (!request.success?.some((op) => op.kind === 'put' && op.key.toString().startsWith(`${PREFIX}/%/`))) return run()
      holder.onTxn = (again) => again()
      throw lost()
    }
    await holder.claim(claim)
    await holder.claim(claim)
    await sleep(100)
    expect(await other.backend.revoke('no mailbox', 'told')).toBe('told')
    await until('the holder to hear of it', async () => {
      await holder.renew(claim, 2_000)
      return holder.told('revoked')
    })
  })

  it('200 holders of one semaphore', async () => {
    const [holder, other] = [new Party(), new Party()]
    for (let i = 0; i < 200; i++) await holder.claim(claimOn('many', 30_000, 300))
    expect(await other.backend.revoke('many', 'now')).toBe('freed')
    expect(await keysOf('many')).toEqual([])
  })
})

describe('a claim that is taken back by the process that gave it away', () => {
  const TAKES = ({ success = [] }: TxnRequest) => success.some((op) => op.kind === 'txn' && hasPut(op as TxnRequest))

  async function givenAway(resource: string) {
    const party = new Party()
    const given = claimOn(resource)
    const { epoch } = (await party.claim(given)) as { epoch: bigint }
    given.isTold = true
    return { party, given, epoch, token: tokenOf(given.id, epoch, party.owner), taken: claimOn(resource, 2_000) }
  }

  it('keeps its name if that was never carried out, and nobody is mistaken for it', async () => {
    const { party, given, epoch, token, taken } = await givenAway('taken in vain')
    party.onTxn = (run, request) => (TAKES(request) ? Promise.reject(lost()) : run())
    expect(await party.renew(taken, 2_000, false, token)).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    // Until nothing is known any more of the one that was to have it.
    await sleep(2_500)
    const next = claimOn('taken in vain')
    expect(await party.claim(next)).toMatchObject({ status: 'queued', holder: { epoch } })
    expect(await party.release(given)).toEqual({ status: 'released' })
    await until('the next one to hold', async () => party.told('granted'))
  })

  it('is where it was if the lease that it was to have ends meanwhile', async () => {
    const { party, given, epoch, token, taken } = await givenAway('taken too late')
    let fail!: () => void
    const failed = new Promise<never>((_, reject) => (fail = () => reject(lost())))
    let lease = 0n
    party.onTxn = (run, request) => {
      if (!TAKES(request)) return run()
      const [nested] = request.success as unknown as [{ success: [{ lease: bigint }] }]
      lease = nested.success[0].lease
      return failed
    }
    const taking = party.renew(taken, 2_000, false, token)
    await until('it to be asked for', async () => lease !== 0n)
    await raw.leaseRevoke(lease)
    // By another claim on that lease it is found out that it is over.
    await until('the end of the lease', async () => (await party.claim(claimOn(`other ${randomBytes(4).toString('hex')}`, 2_000))).status === 'held')
    const next = claimOn('taken too late', 60_000)
    expect(await party.claim(next)).toMatchObject({ status: 'queued', holder: { epoch } })
    fail()
    expect(await taking).toMatchObject({ status: 'failed' })
    expect(await party.claim(next)).toMatchObject({ status: 'queued', holder: { epoch } })
    expect(await keysOf('taken too late')).toHaveLength(2)
    expect(await party.release(given)).toEqual({ status: 'released' })
    await until('the next one to hold', async () => party.told('granted'))
    expect(await party.renew(next, 60_000)).toMatchObject({ status: 'held' })
  })

  it('is lost if it is being let go of', async () => {
    const { party, given, token, taken } = await givenAway('taken while it goes')
    let goOn!: () => void
    const later = new Promise<void>((resolve) => (goOn = resolve))
    party.onTxn = async (run) => {
      party.onTxn = (again) => again()
      await later
      return run()
    }
    const released = party.release(given)
    expect(await party.renew(taken, 2_000, false, token)).toEqual({ status: 'lost' })
    goOn()
    expect(await released).toEqual({ status: 'released' })
    expect(await party.claim(claimOn('taken while it goes'))).toMatchObject({ status: 'held' })
  })
})

describe('a mailbox', () => {
  it('with what is no message harms nobody', async () => {
    const party = new Party()
    await party.claim(claimOn('has mail'))
    const [{ lease }] = (await keysOf('has mail')) as unknown as [{ lease: bigint }]
    const key = Buffer.from(`${PREFIX}/%/${lease.toString(16)}`)
    for (const text of ['["revoked"]', '["lost",5,"3"]', '{', '']) await raw.txn({ success: [{ kind: 'put', key, value: Buffer.from(text), ignoreLease: true }] })
    const [first, second] = [claimOn('has mail', 30_000, 2), claimOn('read', 30_000)]
    await party.claim(second)
    expect(await party.claim(first)).toMatchObject({ status: 'failed' })
    expect(await party.renew(second, 30_000)).toMatchObject({ status: 'held' })
  })
})

describe('a release', () => {
  const conditionsOf = (party: Party): number[] => {
    const found: number[] = []
    const note = ({ success = [], compare = [] }: TxnRequest) => {
      if (success.some(({ kind }) => kind === 'delete')) found.push(compare.length)
      for (const op of success) if (op.kind === 'txn') note(op)
    }
    party.onTxn = (run, request) => {
      note(request)
      return run()
    }
    return found
  }

  it('has no condition while its key can be nobody else\'s', async () => {
    const party = new Party()
    const found = conditionsOf(party)
    const claim = claimOn('ours alone')
    await party.claim(claim)
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(found).toEqual([0])
  })

  it('has one when somebody may have taken the claim over', async () => {
    const party = new Party()
    const found = conditionsOf(party)
    const claim = claimOn('its token was told')
    await party.claim(claim)
    claim.isTold = true
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(found).toEqual([1])
  })

  it('has one when its key may be on another lease', async () => {
    const party = new Party()
    const found = conditionsOf(party)
    const claim = claimOn('moved, and let go of')
    await party.claim(claim)
    await party.renew(claim, 60_000, true)
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(found).toEqual([1])
  })

  it('has one when it is tried again', async () => {
    const party = new Party()
    const claim = claimOn('tried again')
    await party.claim(claim)
    party.onTxn = () => Promise.reject(lost())
    await party.release(claim)
    const found = conditionsOf(party)
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(found).toEqual([1])
  })
})

describe('what is asked for while a transaction is on its way', () => {
  it('waits for it, and is one, since a second transaction costs each member more than is gained by it', async () => {
    const party = new Party()
    const locks = createLocks((scope) => new EtcdBackend(party.client, scope), { prefix: PREFIX })
    onTestFinished(() => locks.close())
    await locks.lock('warm')
    const outcomeOf = async (turn: number) => {
      const sizes: number[] = []
      const meanwhile: Promise<unknown>[] = []
      let sentMeanwhile = 0
      party.onTxn = async (run, request) => {
        sizes.push(request.success!.filter(({ kind }) => kind === 'put').length)
        if (sizes.length > 1) return run()
        for (let i = 0; i < 64; i++) meanwhile.push(locks.lock(`meanwhile ${turn}:${i}`))
        await turnOfTheLoop()
        await turnOfTheLoop()
        sentMeanwhile = sizes.length - 1
        return run()
      }
      await locks.lock(`first ${turn}`)
      await Promise.all(meanwhile)
      return `${sizes.join(', then ')}; ${sentMeanwhile} meanwhile`
    }
    // What hangs for 20 ms is waited for no more, and on a slow machine it may seem to hang.
    let turn = 0
    await until('one after the other', async () => (await outcomeOf(turn++)) === '1, then 64; 0 meanwhile')
  })
})

describe('as many as a server takes at once', () => {
  it('are one transaction: 128 locks, and 128 releases', async () => {
    const party = new Party()
    const claims = Array.from({ length: 128 }, (_, i) => claimOn(`as many ${i}`))
    const asked: number[] = []
    party.onTxn = (run, request) => {
      if (hasPut(request, 'as many') || request.success!.every(({ kind }) => kind === 'delete')) asked.push(request.success!.length)
      return run()
    }
    const states = await party.backend.claim(claims, 'queue')
    expect(states.map(({ status }) => status)).toEqual(claims.map(() => 'held'))
    expect(asked).toEqual([128])
    expect(await party.backend.release(claims)).toEqual(claims.map(() => ({ status: 'released' })))
    expect(asked).toEqual([128, 128])
  })

  it('are halved if they need conditions of their own, and each is told what became of it', async () => {
    const party = new Party()
    const claims = Array.from({ length: 128 }, (_, i) => claimOn(`each its own ${i}`))
    await party.backend.claim(claims, 'queue')
    for (const claim of claims) claim.isTold = true
    const gone = 77
    const asked: number[] = []
    party.onTxn = async (run, { success = [] }) => {
      // Somebody was quicker.
      if (asked.length === 0) await raw.txn({ success: [{ kind: 'delete', key: (await keysOf(claims[gone]!.resource))[0]!.key }] })
      asked.push(success.length)
      return run()
    }
    const states = await party.backend.release(claims)
    expect(asked).toEqual([128, 128, 64, 64])
    expect(states.map(({ status }) => status)).toEqual(claims.map((_, i) => (i === gone ? 'not-held' : 'released')))
  })
})

describe('one lock of many at once that somebody has', () => {
  it('is waited for, and the others are held, with one request more', async () => {
    const [other, party] = [new Party(), new Party()]
    const resources = Array.from({ length: 8 }, (_, i) => `among many ${i}`)
    await other.claim(claimOn(resources[3]!))
    await party.claim(claimOn('warm'))
    const asked: string[] = []
    party.onTxn = (run, request) => {
      if (hasPut(request, 'among many')) asked.push(request.compare!.map(({ rangeEnd }) => (rangeEnd ? 'nobody is there' : 'it is new')).join())
      return run()
    }
    const claims = resources.map((resource) => claimOn(resource))
    const states = await party.backend.claim(claims, 'queue')
    expect(states.map(({ status }) => status)).toEqual(claims.map((_, i) => (i === 3 ? 'queued' : 'held')))
    expect(states[3]).toMatchObject({ holder: { owner: other.owner } })
    expect(asked).toEqual(['nobody is there', 'it is new'].map((condition) => Array.from(resources, () => condition).join()))
    const epochs = states.flatMap((state) => (state.status === 'held' ? [state.epoch] : []))
    const keys = await keysOf(resources[0]!)
    expect(new Set(epochs)).toEqual(new Set([keys[0]!.createRevision]))
  })

  it('is refused to who does not wait, and the others are held', async () => {
    const [other, party] = [new Party(), new Party()]
    const resources = Array.from({ length: 8 }, (_, i) => `some of many ${i}`)
    await other.claim(claimOn(resources[3]!))
    const claims = resources.map((resource) => claimOn(resource))
    const states = await party.backend.claim(claims, 'leave')
    expect(states.map(({ status }) => status)).toEqual(claims.map((_, i) => (i === 3 ? 'refused' : 'held')))
    expect(states[3]).toMatchObject({ holder: { owner: other.owner } })
    expect(await keysOf(resources[3]!)).toHaveLength(1)
  })
})

describe('the name of a key', () => {
  const nameOf = async (resource: string) => (await keysOf(resource)).map(({ key }) => key.toString()).join()

  it('is used again when its claim is over: etcd goes past every name that ever was in a line', async () => {
    const party = new Party()
    const names = new Set<string>()
    for (let turn = 0; turn < 3; turn++) {
      const claim = claimOn('again')
      const { epoch } = (await party.claim(claim)) as { epoch: bigint }
      const [kv] = await keysOf('again')
      expect(kv?.createRevision).toBe(epoch)
      names.add(kv!.key.toString())
      // Somebody is there: nothing is put.
      expect(await party.claim(claimOn('again'), 'leave')).toMatchObject({ status: 'refused' })
      await party.release(claim)
    }
    expect(names.size).toBe(1)
  })

  it('is not, if it is not known what became of a request', async () => {
    const party = new Party()
    const [first, second, third] = [claimOn('unsure'), claimOn('unsure'), claimOn('unsure')]
    await party.claim(first)
    const firstName = await nameOf('unsure')
    party.onTxn = loseAnswer
    expect(await party.release(first)).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    await party.claim(second)
    const secondName = await nameOf('unsure')
    expect(secondName).not.toBe(firstName)
    // Let go of twice, and one of the requests may be carried out when the other is long answered.
    let carryOut = () => {}
    const isLate = new Promise<void>((resolve) => (carryOut = resolve))
    party.onTxn = async (run) => {
      party.onTxn = (again) => again()
      await isLate
      return run()
    }
    const late = party.release(second)
    await sleep(50)
    await party.release(second)
    expect(await party.claim(third)).toMatchObject({ status: 'held' })
    carryOut()
    await late
    expect(await nameOf('unsure')).not.toBe('')
    expect(await party.renew(third, 30_000)).toMatchObject({ status: 'held' })
  })

  it('what was asked for and comes to pass long after does not touch who came later', async () => {
    const party = new Party()
    let carryOut: () => Promise<unknown> = async () => {}
    party.onTxn = async (run, request) => {
      if (!hasPut(request) || !JSON.stringify(request.success!.map((op) => 'key' in op && op.key.toString())).includes('/late/')) return run()
      party.onTxn = (again) => again()
      carryOut = run
      throw lost()
    }
    const [early, later] = [claimOn('late', 2_000), claimOn('late', 2_000)]
    expect(await party.claim(early)).toMatchObject({ status: 'failed' })
    expect(await party.release(early)).toEqual({ status: 'unknown' })
    expect(await party.claim(later)).toMatchObject({ status: 'held' })
    const name = await nameOf('late')
    await carryOut()
    expect(await keysOf('late')).toHaveLength(2)
    // It is on our lease and nobody's: the next beat takes it away.
    await until('it to be alone', async () => (await keysOf('late')).length === 1)
    expect(await nameOf('late')).toBe(name)
    expect(await party.renew(later, 2_000)).toMatchObject({ status: 'held' })
  })

  it('what others say of a claim that had it before is not heard', async () => {
    const party = new Party()
    const [before, after] = [claimOn('messages'), claimOn('messages')]
    await party.claim(before)
    const [old] = await keysOf('messages')
    await party.release(before)
    await party.claim(after)
    const [now] = await keysOf('messages')
    expect(now!.key).toEqual(old!.key)
    const mailbox = Buffer.from(`${PREFIX}/%/${now!.lease.toString(16)}`)
    const tell = (kind: string, { key, createRevision }: typeof old & {}) =>
      raw.txn({ success: [{ kind: 'put', key: mailbox, value: Buffer.from(JSON.stringify([kind, key.toString(), String(createRevision)])), ignoreLease: true }] })
    await tell('lost', old!)
    await tell('revoked', old!)
    await tell('contended', now!)
    await until('the last to be heard', async () => party.told('contended'))
    expect(party.heard.map(({ kind }) => kind)).toEqual(['contended'])
  })
})

describe('what a session has', () => {
  const lease = () => BigInt(`0x${randomBytes(6).toString('hex')}`)
  const sessionOn = (id: bigint): Claim => ({ ...claimOn(`session/${id.toString(16)}`), lease: { id, role: 'session' } })
  const memberOn = (resource: string, id: bigint): Claim => ({ ...claimOn(`${PREFIX}/${resource}/`), lease: { id, role: 'member' } })
  const isDelete = ({ success = [] }: TxnRequest): boolean => success.some((op) => op.kind === 'delete' || (op.kind === 'txn' && isDelete(op as TxnRequest)))

  /** It is carried out later, and is answered before that as if nothing were known of it. */
  function delays(party: Party, which: (request: TxnRequest) => boolean): () => Promise<unknown> {
    let carryOut: (() => Promise<unknown>) | undefined
    party.onTxn = async (run, request) => {
      if (carryOut || !which(request)) return run()
      carryOut = run
      throw lost()
    }
    return () => carryOut!()
  }

  it('is in nobody’s way if a put comes after it was released, and claimed and released once more', async () => {
    const party = new Party()
    const id = lease()
    await party.claim(sessionOn(id))
    const putNow = delays(party, hasPut)
    const first = memberOn('late put', id)
    expect(await party.claim(first)).toMatchObject({ status: 'failed' })
    await party.release(first)
    const second = memberOn('late put', id)
    expect(await party.claim(second)).toMatchObject({ status: 'held' })
    await party.release(second)
    await putNow()
    expect(await keysOf('late put')).toHaveLength(0)
  })

  it('is not asked for again when its answer is lost and the session has ended since', async () => {
    const party = new Party()
    const id = lease()
    await party.claim(sessionOn(id))
    const claim = memberOn('ended', id)
    party.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    expect(await party.claim(claim)).toMatchObject({ status: 'failed' })
    party.onTxn = async (run) => {
      party.onTxn = (again) => again()
      await raw.leaseRevoke(id)
      return run()
    }
    expect(await party.claim(claim)).toMatchObject({ status: 'failed', error: { name: 'SessionExpiredError' } })
    await until('the loss of the session', async () => party.told('lost'))
  })

  it('whose release was lost is let go of by the next try', async () => {
    const party = new Party()
    const id = lease()
    await party.claim(sessionOn(id))
    const claim = memberOn('twice', id)
    await party.claim(claim)
    party.onTxn = () => Promise.reject(lost())
    expect(await party.release(claim)).toMatchObject({ status: 'failed' })
    party.onTxn = (run) => run()
    expect(await party.release(claim)).toEqual({ status: 'released' })
    expect(await keysOf('twice')).toEqual([])
  })

  it('is not deleted by what is late of the one before', async () => {
    const party = new Party()
    const id = lease()
    await party.claim(sessionOn(id))
    const first = memberOn('late delete', id)
    party.onTxn = (run, request) => (hasPut(request) ? loseAnswer(run) : run())
    expect(await party.claim(first)).toMatchObject({ status: 'failed' })
    const deleteNow = delays(party, isDelete)
    expect(await party.release(first)).toMatchObject({ status: 'failed' })
    await until('it to be deleted', async () => (await keysOf('late delete')).length === 0)
    const second = memberOn('late delete', id)
    await until('it to be held again', async () => (await party.claim(second)).status === 'held')
    await deleteNow()
    expect(await keysOf('late delete')).toHaveLength(1)
  })

  it('is not deleted by a process that has orphaned the session while it waited', async () => {
    const [old, other] = [new Party(), new Party()]
    const locks = createLocks((scope) => new EtcdBackend(old.client, scope), { prefix: PREFIX })
    const others = createLocks((scope) => new EtcdBackend(other.client, scope), { prefix: PREFIX })
    onTestFinished(async () => void (await Promise.all([locks.close(), others.close()])))
    const session = await locks.session({ ttlMs: 30_000 })
    // Its answer comes late.
    let answer!: () => void
    const late = new Promise<void>((resolve) => (answer = resolve))
    old.onTxn = async (run, request) => {
      const response = await run()
      if (hasPut(request)) await late
      return response
    }
    const locking = new Mutex(session, `${PREFIX}/orphaned`).lock()
    locking.catch(() => {})
    await until('its key', async () => (await keysOf('orphaned')).length === 1)
    await session.orphan()
    const mutex = new Mutex(await others.session({ lease: session.lease }), `${PREFIX}/orphaned`)
    await mutex.lock()
    answer()
    await sleep(500)
    expect(await keysOf('orphaned')).toHaveLength(1)
    expect(await mutex.isOwner().check()).toBe(true)
  })
})
