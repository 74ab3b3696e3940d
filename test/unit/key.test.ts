import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { InvalidKeyError, key } from '../../src/index.js'
import { checkKey } from '../../src/core/key.js'
import { manualWorld } from '../support/manual-world.js'

/** Parts that are likely to collide if anything can. */
const part = fc.oneof(
  fc.string({ minLength: 1, maxLength: 6, unit: fc.constantFrom('a', 'b', ':', '/', '%', '3', 'A', '2', 'F', '5') }),
  fc.string({ minLength: 1, maxLength: 20, unit: 'binary' }),
)

it('key is a tag, and says so when it is called', () => {
  expect(() => (key as unknown as (...args: unknown[]) => string)('order', 4)).toThrow(InvalidKeyError)
})

describe('a key', () => {
  it.each(['a', ' ', 'a ', 'order:42', 'a/b', '__proto__', '{tag}', 'a\r\nb', 'a\0b', '100%', '_', "'; DROP TABLE", '锁', '🔒'])(
    'can be %j',
    async (name) => {
      const { manager } = manualWorld()
      const lock = await manager().lock(name)
      expect(lock.key).toBe(name)
      expect(await lock.release()).toBe(true)
    },
  )

  it('has up to 512 bytes of UTF-8', () => {
    checkKey('a'.repeat(512))
    checkKey('锁'.repeat(170))
    expect(() => checkKey('a'.repeat(513))).toThrow(InvalidKeyError)
    expect(() => checkKey('锁'.repeat(171))).toThrow(/at most 512 bytes of UTF-8; this one has 513/)
    expect(() => checkKey('🔒'.repeat(129))).toThrow(InvalidKeyError)
  })

  it('is not repeated at full length by the refusal', () => {
    expect.assertions(1)
    try {
      checkKey('a'.repeat(1_000_000))
    } catch (error) {
      expect((error as Error).message.length).toBeLessThan(200)
    }
  })

  it.each([
    ['an empty one', '', /empty/],
    ['a lone surrogate', 'a\ud800b', /well-formed/],
    ['a lone low surrogate', '\udc00', /well-formed/],
    ['null', null, /not null/],
    ['undefined', undefined, /not undefined/],
    ['a number', 42, /not number/],
    ['an object', {}, /not an object/],
    ['an array', ['a'], /not an array/],
    ['a symbol', Symbol('a'), /not symbol/],
  ])('cannot be %s', (_, bad, why) => {
    expect(() => checkKey(bad)).toThrow(InvalidKeyError)
    expect(() => checkKey(bad)).toThrow(why)
  })

  it('stays one key: `a`, `A` and `a ` do not exclude each other', async () => {
    const locks = manualWorld().manager()
    for (const name of ['a', 'A', 'a ', 'a/b', 'a:b', 'á', 'a\u0301']) expect(await locks.tryLock(name)).not.toBeNull()
    expect(await locks.tryLock('a')).toBeNull()
  })
})

describe('key`…`', () => {
  it('puts parts into a text', () => {
    expect(key`order:${42}`).toBe('order:42')
    expect(key`shop:${'eu'}/order:${10n}:${true}`).toBe('shop:eu/order:10:true')
    expect(key`all`).toBe('all')
  })

  it("leaves the template's own separators alone and escapes those of the parts", () => {
    expect(key`a:${'b:c/d%e'}`).toBe('a:b%3Ac%2Fd%25e')
    expect(key`a:${'b:c'}:${'d'}`).not.toBe(key`a:${'b'}:${'c:d'}`)
    expect(key`a:${'%3A'}`).not.toBe(key`a:${':'}`)
  })

  it('gives different keys for different parts', () => {
    const templates: ((x: string, y: string) => string)[] = [
      (x, y) => key`${x}:${y}`,
      (x, y) => key`${x}/${y}`,
      (x, y) => key`p:${x}a:b${y}3A`,
      (x, y) => key`${x}%:${y}`,
      (x, y) => key`a:${x}::${y}/`,
    ]
    for (const build of templates) {
      fc.assert(
        fc.property(part, part, part, part, (a, b, c, d) => {
          if (a === c && b === d) expect(build(a, b)).toBe(build(c, d))
          else expect(build(a, b)).not.toBe(build(c, d))
        }),
        { numRuns: 500 },
      )
    }
  })

  it('gives different keys for a part and for the same written into the template', () => {
    fc.assert(
      fc.property(part, part, (a, b) => {
        expect(key`order:${`${a}:${b}`}`).not.toBe(key`order:${a}:${b}`)
      }),
    )
  })

  it('takes any well-formed part, and what it builds is a key', () => {
    fc.assert(fc.property(part, (text) => checkKey(key`order:${text}`)))
  })

  it.each([
    ['null', null, /Part 1 of the key is null/],
    ['undefined', undefined, /Part 1 of the key is undefined/],
    ['an object', {}, /is an object/],
    ['an array', ['a'], /is an array/],
    ['a function', () => 'a', /is function/],
    ['a symbol', Symbol('a'), /is symbol/],
    ['an empty string', '', /is empty/],
    ['NaN', Number.NaN, /is NaN/],
    ['Infinity', Infinity, /is Infinity/],
    ['a lone surrogate', '\ud800', /well-formed/],
  ])('refuses %s', (_, bad, why) => {
    expect(() => key`order:${bad as string}`).toThrow(InvalidKeyError)
    expect(() => key`order:${bad as string}`).toThrow(why)
  })

  it('says which part is bad', () => {
    expect(() => key`order:${1}:${undefined as unknown as string}`).toThrow(/Part 2/)
  })

  it('refuses two parts that nothing separates', () => {
    expect(() => key`${'a'}${'b'}`).toThrow(InvalidKeyError)
    expect(() => key`${'a'}-${'b'}`).toThrow(/need a ":" or "\/" between them/)
  })

  it('refuses what gets too long', () => {
    expect(() => key`order:${'a'.repeat(507)}`).toThrow(InvalidKeyError)
    expect(key`order:${'a'.repeat(506)}`).toHaveLength(512)
  })
})
