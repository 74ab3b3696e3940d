/** An election among sessions, with the meaning of etcd's: the first in line leads, until it resigns or its session ends. */
import { linkedController } from '../core/abort.js'
import type { Announcement } from '../core/backend.js'
import { ConfigurationError, NoLeaderError, NotLeaderError } from '../core/errors.js'
import type { Hold } from '../core/hold.js'
import type { Member } from './member.js'
import { checkSignalIn, checkWaiting, memberKey, Session, type ManagerSurroundings, type WaitOptions } from './session.js'
import { Tenure } from './tenure.js'

/** Who leads, and with what words. */
export interface Leader {
  readonly value: string
  /** Its place in the line on the store. */
  readonly key: string
  /** When it came to lead, in the count of the store: it grows with every leader. */
  readonly rev: bigint
  /** Grows with everything that a leader of this election says. */
  readonly header: { readonly revision: bigint }
}

const MOST_VALUE_BYTES = 3_000

export class Election extends Tenure {
  constructor(session: Session, prefix: string) {
    super('Election', session, prefix)
  }

  /** Takes up a leadership of the session, by what its `key` and `rev` were. Rejects with `NotLeaderError` if it is over. */
  static async resume(session: Session, prefix: string, key: string, rev: bigint): Promise<Election> {
    const isKey = typeof key === 'string' && typeof prefix === 'string' && key.startsWith(prefix) && key.includes('/')
    if (!isKey || typeof rev !== 'bigint') {
      throw new ConfigurationError('Election.resume() takes a session, the prefix, and the key and rev of a leadership.')
    }
    // Nothing is put between prefix and lease here: the key says what is.
    const election = new Election(session, key.slice(0, key.lastIndexOf('/')))
    await election.#resume(key, rev)
    return election
  }

  async #resume(key: string, rev: bigint): Promise<void> {
    const over = this.#notLeader('that leadership is over')
    const leader = await this.leader().catch((error: unknown) => {
      throw error instanceof NoLeaderError ? over : error
    })
    if (leader.key !== key || key !== this.key || leader.rev !== rev) throw over
    const hold = await this.member.tryToEnter({ type: 'election', value: leader.value }, undefined)
    this.begins(hold)
    if (hold.epoch === rev) return
    // It was over in the meantime, and this is another.
    await this.resign()
    throw over
  }

  /** Resolves when the session leads. If it leads already, it says this from now on. */
  async campaign(value: string, options?: WaitOptions): Promise<void> {
    checkValue(value)
    const signal = checkWaiting(options)
    const member = this.member
    const hold = await member.enter({ type: 'election', value }, signal)
    this.begins(hold)
    try {
      await this.#say(value, hold, member)
    } catch (error) {
      // Nobody would know that it leads.
      await this.resign().catch(() => hold.abandon())
      throw error
    }
  }

  /** Says something else, for as long as it leads. */
  async proclaim(value: string): Promise<void> {
    checkValue(value)
    const hold = this.hold
    if (!hold?.isHeld) throw this.#notLeader('it was not elected, has resigned, or has lost')
    await this.#say(value, hold, this.member)
  }

  async #say(value: string, hold: Hold, member: Member): Promise<void> {
    if (member.said === value) return
    const { claim, epoch } = hold
    const { board } = this.#around
    const isFirst = member.said === undefined
    // Until it is answered; and if it never is, or others say something at the same time, whatever comes next has to be said.
    member.said = null
    const isSaid = await (isFirst ? board.announce(claim, epoch, value) : board.proclaim(claim, epoch, value))
    if (isSaid) {
      member.said = value
    } else {
      hold.lose('the store said so')
      throw this.#notLeader('another may lead by now')
    }
  }

  /** Gives up leading; nothing if it does not lead. If that fails, it can be tried again. */
  async resign(): Promise<void> {
    if (this.hold) await this.gives(this.hold)
  }

  /** Rejects with `NoLeaderError` if nobody leads. */
  leader(): Promise<Leader> {
    return leaderOf(this.#around, this.resource)
  }

  /** Who leads, or the first who comes to; then every new value and every new leader. Ends with the signal, or with the manager. */
  observe(options?: WaitOptions): AsyncIterable<Leader> {
    return observe(this.#around, this.resource, options)
  }

  get #around(): ManagerSurroundings {
    return Session.around(this.session)
  }

  #notLeader(why: string): NotLeaderError {
    return new NotLeaderError(`This session does not lead "${this.prefix}": ${why}.`)
  }
}

export async function leaderOf({ claims, board }: ManagerSurroundings, resource: string): Promise<Leader> {
  claims.assertOpen()
  const announced = await board.leader(resource)
  if (!announced) throw new NoLeaderError(`Nobody leads "${resource.slice(0, -1)}".`)
  return shown(announced, resource)
}

export async function* observe({ claims, board, closing }: ManagerSurroundings, resource: string, options?: WaitOptions): AsyncGenerator<Leader, void> {
  const signal = checkSignalIn(options)
  claims.assertOpen()
  const { controller, unlink } = linkedController(signal, closing)
  try {
    for await (const announced of board.observe(resource, controller.signal)) yield shown(announced, resource)
  } finally {
    controller.abort()
    unlink()
  }
}

function shown({ value, lease, epoch, revision }: Announcement, resource: string): Leader {
  return { value, key: memberKey(resource, lease), rev: epoch, header: { revision } }
}

export function checkValue(value: unknown): asserts value is string {
  if (typeof value !== 'string') throw new ConfigurationError(`The value of a candidate is a string, not ${typeof value}.`)
  if (Buffer.byteLength(JSON.stringify(value)) > MOST_VALUE_BYTES) {
    throw new ConfigurationError(`The value of a candidate has at most ${MOST_VALUE_BYTES} bytes of JSON.`)
  }
}
