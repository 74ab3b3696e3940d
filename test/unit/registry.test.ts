/** What is registered under a name is found by it, however many come and go. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Registry, type Registered } from '../../src/core/registry.js'

class Thing implements Registered<Thing> {
  readonly name: string
  next: Thing | undefined

  constructor(name: string) {
    this.name = name
  }
}

const namesIn = (registry: Registry<Thing>) => [...registry].map(({ name }) => name).sort()

describe('a registry', () => {
  it('does what a map does, whatever is added and removed', () => {
    const name = fc.oneof(fc.constantFrom('a', 'b', 'aa', '__proto__', 'constructor', ''), fc.string({ unit: 'binary' }), fc.nat(300).map(String))
    const step = fc.record({ name, removes: fc.boolean() })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 400, size: 'max' }), (steps) => {
        const registry = new Registry<Thing>()
        const model = new Map<string, Thing>()
        for (const { name: one, removes } of steps) {
          const known = model.get(one)
          expect(registry.get(one)).toBe(known)
          if (removes && known) {
            registry.remove(known)
            model.delete(one)
          } else if (!known) {
            const thing = new Thing(one)
            registry.add(thing)
            model.set(one, thing)
          }
          expect(registry.size).toBe(model.size)
        }
        expect(namesIn(registry)).toEqual([...model.keys()].sort())
      }),
    )
  })

  it('grows with what is in it, and holds on to nothing that has left', () => {
    const registry = new Registry<Thing>()
    const things = Array.from({ length: 10_000 }, (_, i) => new Thing(`key:${i}`))
    for (const thing of things) registry.add(thing)
    for (const thing of things) expect(registry.get(thing.name)).toBe(thing)
    for (const thing of things) registry.remove(thing)
    expect(registry.size).toBe(0)
    expect(namesIn(registry)).toEqual([])
    expect(things.every(({ next }) => next === undefined)).toBe(true)
  })

  it('lets things leave while it is gone through', () => {
    const registry = new Registry<Thing>()
    const things = Array.from({ length: 200 }, (_, i) => new Thing(String(i)))
    for (const thing of things) registry.add(thing)
    let seen = 0
    for (const _ of registry) {
      seen++
      for (const thing of things) registry.remove(thing)
    }
    expect(seen).toBe(200)
  })

  it('is not hurt by removing what is not there, or is not the one of that name', () => {
    const registry = new Registry<Thing>()
    const thing = new Thing('a')
    registry.add(thing)
    registry.remove(new Thing('a'))
    registry.remove(new Thing('b'))
    expect(registry.get('a')).toBe(thing)
    expect(registry.size).toBe(1)
  })
})
