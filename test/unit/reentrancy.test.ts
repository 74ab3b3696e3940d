/** Reentrancy is by callback: what a chain of callbacks holds, it may enter again. */
import { describe, expect, it } from 'vitest'
import {
  LockAlreadyHeldError, LockNotAcquiredError, LockNotHeldError, OwnershipLostError, type DistributedLock,
} from '../../src/index.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

const reentrant = { reentrant: true } as const

describe('inside a callback that holds the key', () => {
  it('asking again with `reentrant` enters again, with no request', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const result = await locks.withLock('k', reentrant, (outer) =>
      locks.withLock('k', reentrant, async (inner) => {
        expect(inner).not.toBe(outer)
        expect(inner.key).toBe('k')
        expect(inner.fence).toBe(outer.fence)
        expect(inner.token).toBe(outer.token)
        inner.assertHeld()
        const third = await locks.tryLock('k', reentrant)
        const fourth = await locks.lock('k', reentrant)
        expect([third!.fence, fourth.fence]).toEqual([outer.fence, outer.fence])
        await third!.release()
        await fourth.release()
        return 'inner'
      }),
    )
    expect(result).toBe('inner')
    expect(store.requests.map(({ method }) => method)).toEqual(['claim', 'release'])
  })

  it('the outer one need not have said `reentrant`', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    expect(await locks.withLock('k', () => locks.withLock('k', reentrant, () => 'entered'))).toBe('entered')
  })

  it('entries are counted: the lock is released when the last has left', async () => {
    const { manager, store } = manualWorld()
    const [locks, other] = [manager(), manager()]
    await locks.withLock('k', async (outer) => {
      await locks.withLock('k', reentrant, async (middle) => {
        await locks.withLock('k', reentrant, () => {})
        middle.assertHeld()
        expect(await other.tryLock('k')).toBeNull()
      })
      outer.assertHeld()
      expect(await other.tryLock('k')).toBeNull()
      expect(store.sent('release')).toEqual([])
    })
    expect(await other.tryLock('k')).not.toBeNull()
    expect(store.sent('release')).toHaveLength(1)
  })

  it('a callback that is over is not told of what becomes of the lock later', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    let innerSignal!: AbortSignal
    await locks.withLock('k', { maxHoldMs: 100 }, async (outer) => {
      await locks.withLock('k', reentrant, ({ signal }) => void (innerSignal = signal))
      await clock.advance(100)
      expect(outer.signal.aborted).toBe(true)
    })
    expect(innerSignal.aborted).toBe(false)
  })

  it('the lock is kept until an inner callback that outlives the outer one is done', async () => {
    const { manager } = manualWorld()
    const [locks, other] = [manager(), manager()]
    let finish!: () => void
    const gate = new Promise<void>((resolve) => (finish = resolve))
    let inner!: Promise<string>
    await locks.withLock('k', async () => {
      inner = locks.withLock('k', reentrant, async (lock) => {
        await gate
        lock.assertHeld()
        return 'inner'
      })
    })
    expect(await other.tryLock('k')).toBeNull()
    finish()
    expect(await inner).toBe('inner')
    expect(await other.tryLock('k')).not.toBeNull()
  })

  it('an inner handle that was released is spent, and the outer one is not', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('k', async (outer) => {
      const inner = await locks.lock('k', reentrant)
      expect(await inner.release()).toBe(true)
      expect(await inner.release()).toBe(false)
      expect(inner.remainingMs).toBe(0)
      expect(() => inner.assertHeld()).toThrow(LockNotHeldError)
      outer.assertHeld()
      expect(outer.remainingMs).toBeGreaterThan(0)
    })
  })

  it('an inner handle that was released cannot extend the lock any more', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.withLock('k', async () => {
      const inner = await locks.lock('k', reentrant)
      await inner.release()
      await expect(inner.extend(60_000)).rejects.toThrow(LockNotHeldError)
      expect(store.sent('renew')).toEqual([])
    })
  })

  it('asking again without `reentrant` is refused at once, with no request: it would never end', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.withLock('k', reentrant, async (lock) => {
      const before = store.requests.length
      await expect(locks.withLock('k', () => expect.unreachable())).rejects.toThrow(LockAlreadyHeldError)
      await expect(locks.lock('k')).rejects.toMatchObject({ code: 'LOCK_ALREADY_HELD', key: 'k' })
      await expect(locks.lock('k', { waitMs: 5_000 })).rejects.toThrow('Pass reentrant: true to enter again')
      expect(await locks.tryLock('k')).toBeNull()
      expect(await locks.tryLock('k', { waitMs: 60_000 })).toBeNull()
      expect(store.requests.length).toBe(before)
      lock.assertHeld()
    })
  })

  it('however deep, and through other locks and other functions', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const ask = async () => {
      await settle()
      await new Promise((resolve) => setTimeout(resolve, 1))
      return locks.lock('k')
    }
    await locks.withLock('k', () =>
      locks.withLock('a', () =>
        locks.withLock('b', async () => {
          await expect(ask()).rejects.toThrow(LockAlreadyHeldError)
          await expect(locks.withLock('a', () => {})).rejects.toThrow(LockAlreadyHeldError)
          await locks.withLock('c', () => {})
        }),
      ),
    )
  })

  it('a key of another manager is another key', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager({ prefix: 'a' }), manager({ prefix: 'b' })]
    await a.withLock('k', () => b.withLock('k', () => {}))
  })

  it('an error inside leaves the outer entry as it is', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('k', async (outer) => {
      await expect(locks.withLock('k', reentrant, () => { throw new Error('inner') })).rejects.toThrow('inner')
      outer.assertHeld()
    })
  })

  it("an inner callback's signal follows its own caller's, and the outer one's does not", async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const controller = new AbortController()
    await locks.withLock('k', async (outer) => {
      await locks.withLock('k', { reentrant: true, signal: controller.signal }, (inner) => {
        controller.abort('inner')
        expect(inner.signal.reason).toBe('inner')
      })
      expect(outer.signal.aborted).toBe(false)
    })
  })

  it('a signal that is aborted already keeps from entering again, as it keeps from entering', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    let ran = false
    await locks.withLock('k', async () => {
      const signal = AbortSignal.abort('too late')
      await expect(locks.withLock('k', { reentrant: true, signal }, () => (ran = true))).rejects.toBe('too late')
    })
    expect(ran).toBe(false)
  })

  it('a loss reaches every entry', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    store.blackHole('renew')
    await locks.withLock('k', (outer) =>
      locks.withLock('k', reentrant, async (inner) => {
        const signals = [outer.signal, inner.signal]
        await clock.advance(10_000)
        for (const signal of signals) expect(signal.reason).toBeInstanceOf(OwnershipLostError)
      }),
    )
  })

  it('does not enter a lock that is being released', async () => {
    const { manager } = manualWorld()
    const [locks, other] = [manager(), manager()]
    const together: string[] = []
    await locks.withLock('k', async (outer) => {
      const releasing = outer.release()
      const theirs = other.lock('k').then(async (lock) => {
        together.push('theirs in')
        await settle()
        together.push('theirs out')
        await lock.release()
      })
      const again = locks.withLock('k', reentrant, async (inner) => {
        together.push('ours in')
        inner.assertHeld()
        await settle()
        together.push('ours out')
      })
      await Promise.all([releasing, theirs, again])
    })
    // One after the other, whoever is first.
    const [ours, theirs] = [['ours in', 'ours out'], ['theirs in', 'theirs out']] as const
    expect([[...ours, ...theirs], [...theirs, ...ours]]).toContainEqual(together)
  })

  it('does not enter a lock whose release failed: it may have been carried out all the same', async () => {
    const { manager, store } = manualWorld()
    const [locks, other] = [manager(), manager()]
    await locks.withLock('k', async (outer) => {
      store.failReply('release')
      await expect(outer.release()).rejects.toThrow('The connection broke.')
      const theirs = await other.tryLock('k')
      expect(theirs).not.toBeNull()
      expect(await locks.tryLock('k', reentrant)).toBeNull()
      await theirs!.release()
    })
  })

  it('does not run under a lock whose release overtook it', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('k', async (outer) => {
      const again = locks.withLock('k', reentrant, (inner) => inner.assertHeld())
      const releasing = outer.release()
      await Promise.all([again, releasing])
    })
  })
})

describe('outside of the chain', () => {
  it('siblings are not affected: they queue', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const order: string[] = []
    const work = (name: string) =>
      locks.withLock('k', reentrant, async () => {
        order.push(`${name} in`)
        await settle()
        order.push(`${name} out`)
      })
    await Promise.all([work('a'), work('b'), work('c')])
    expect(order).toEqual(['a in', 'a out', 'b in', 'b out', 'c in', 'c out'])
  })

  it('whoever asks while another callback of the same process holds the key waits, or is refused as anybody else', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    let finish!: () => void
    const gate = new Promise<void>((resolve) => (finish = resolve))
    const running = locks.withLock('k', reentrant, () => gate)
    await settle()
    expect(await locks.tryLock('k', reentrant)).toBeNull()
    const refused = watch(locks.lock('k', { waitMs: 100 }))
    const waiting = [watch(locks.lock('k', reentrant)), watch(locks.withLock('k', () => 'in'))]
    await clock.advance(100)
    expect(refused.error).toBeInstanceOf(LockNotAcquiredError)
    expect(waiting.map(({ state }) => state)).toEqual(['pending', 'pending'])
    finish()
    await running
    await settle()
    expect(waiting.map(({ state }) => state)).toEqual(['resolved', 'pending'])
  })

  it('a call after the callback is a new one', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.withLock('k', () => {})
    await locks.withLock('k', () => {})
    expect(store.sent('claim')).toHaveLength(2)
  })

  it('what was started inside and outlives the callback holds nothing any more', async () => {
    const { manager } = manualWorld()
    const [locks, other] = [manager(), manager()]
    let go!: () => void
    const gate = new Promise<void>((resolve) => (go = resolve))
    let later!: Promise<DistributedLock>
    await locks.withLock('k', async () => {
      later = gate.then(() => locks.lock('k', reentrant))
    })
    const theirs = await other.lock('k')
    go()
    const waiting = watch(later)
    await settle()
    expect(waiting.state).toBe('pending')
    await theirs.release()
    await settle()
    expect(waiting.state).toBe('resolved')
  })

  it('lock() opens no chain: asked twice it waits, and its refusal says that this process holds the key', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k', reentrant)
    const second = watch(locks.lock('k', reentrant))
    const third = watch(locks.lock('k', { reentrant: true, waitMs: 100 }))
    expect(await locks.tryLock('k', reentrant)).toBeNull()
    await clock.advance(100)
    expect(third.error).toBeInstanceOf(LockNotAcquiredError)
    expect(third.error.message).toContain('held by this process')
    expect(second.state).toBe('pending')
    await lock.release()
    await settle()
    expect(second.state).toBe('resolved')
  })

  it('a lock() inside a callback does not count as entered for those who come after', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('a', async () => {
      const lock = await locks.lock('b')
      expect(await locks.tryLock('b', reentrant)).toBeNull()
      await lock.release()
    })
  })
})

describe('after the outer lock was lost', () => {
  it('asking again is a new claim, with a new token and a higher fence', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    await locks.withLock('k', { autoRenew: false }, async (outer) => {
      clock.jump(20_000)
      for (const options of [{}, reentrant]) {
        await locks.withLock('k', options, (inner) => {
          expect(inner.token).not.toBe(outer.token)
          expect(inner.fence).toBeGreaterThan(outer.fence)
          inner.assertHeld()
          expect(() => outer.assertHeld()).toThrow(OwnershipLostError)
        })
      }
    })
  })

  it('it waits for whoever holds the key now', async () => {
    const { manager, clock } = manualWorld()
    const [locks, other] = [manager(), manager()]
    await locks.withLock('k', { autoRenew: false }, async () => {
      clock.jump(20_000)
      const theirs = await other.lock('k')
      const again = watch(locks.withLock('k', reentrant, () => 'in'))
      await settle()
      expect(again.state).toBe('pending')
      await theirs.release()
      await settle()
      expect(again.value).toBe('in')
    })
  })

  it('the end of the outer callback does not release what the inner one holds', async () => {
    const { manager, clock } = manualWorld()
    const [locks, other] = [manager(), manager()]
    let inner!: DistributedLock
    await locks.withLock('k', { autoRenew: false }, async () => {
      clock.jump(20_000)
      inner = await locks.lock('k')
    })
    await settle()
    inner.assertHeld()
    expect(await other.tryLock('k')).toBeNull()
  })
})

describe('unlock of a lock entered more than once', () => {
  it('leaves one level', async () => {
    const { manager, store } = manualWorld()
    const [locks, other] = [manager(), manager()]
    await locks.withLock('k', async (outer) => {
      const inner = await locks.lock('k', reentrant)
      await locks.unlock('k')
      expect(() => inner.assertHeld()).toThrow(LockNotHeldError)
      outer.assertHeld()
      expect(store.sent('release')).toEqual([])
      await locks.unlock('k')
      expect(() => outer.assertHeld()).toThrow(LockNotHeldError)
      expect(await other.tryLock('k')).not.toBeNull()
      await expect(locks.unlock('k')).rejects.toThrow(LockNotHeldError)
    })
  })
})
