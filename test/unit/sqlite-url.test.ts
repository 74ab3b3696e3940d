/** Where the file is. */
import { resolve } from 'node:path'
import { describe, expect, it } from 'vitest'
import { defaultFile } from '../../src/backends/sql/sqlite/file.js'
import { parseSqliteUrl } from '../../src/backends/sql/sqlite/url.js'
import { ConfigurationError } from '../../src/index.js'

describe('a URL', () => {
  it.each([
    ['sqlite:', undefined],
    ['SQLITE:', undefined],
    ['sqlite:./locks.db', resolve('locks.db')],
    ['sqlite:locks.db', resolve('locks.db')],
    ['sqlite:../a/locks.db', resolve('../a/locks.db')],
    ['sqlite:/var/lib/locks.db', '/var/lib/locks.db'],
    ['sqlite:///var/lib/locks.db', '/var/lib/locks.db'],
    ['sqlite:/a%20b/%23%3F%25.db', '/a b/#?%.db'],
    ['sqlite:/é/鎖.db', '/é/鎖.db'],
  ])('%s names %s', (url, file) => expect(parseSqliteUrl(url)).toBe(file))

  it.each([
    'sqlite://host/locks.db', 'sqlite:./a.db?mode=ro', 'sqlite:./a.db#x', 'sqlite::memory:', 'sqlite:a%', 'sqlite:a%00b',
    'sqlite:/a/', 'sqlite:./',
  ])('%s is refused', (url) => expect(() => parseSqliteUrl(url)).toThrow(ConfigurationError))
})

describe('the default file', () => {
  it.each([
    ['linux', {}, '/home/me', '/home/me/.local/state/holdfast/locks.db'],
    ['linux', { XDG_STATE_HOME: '/state' }, '/home/me', '/state/holdfast/locks.db'],
    ['linux', { XDG_STATE_HOME: 'relative' }, '/home/me', '/home/me/.local/state/holdfast/locks.db'],
    ['linux', { XDG_STATE_HOME: '' }, '/home/me', '/home/me/.local/state/holdfast/locks.db'],
    ['freebsd', { XDG_STATE_HOME: '/state' }, '/home/me', '/state/holdfast/locks.db'],
    ['darwin', { XDG_STATE_HOME: '/state' }, '/Users/me', '/Users/me/Library/Application Support/holdfast/locks.db'],
    ['win32', { LOCALAPPDATA: '/local' }, '/me', '/local/holdfast/locks.db'],
    ['win32', {}, '/me', '/me/AppData/Local/holdfast/locks.db'],
  ] as const)('on %s with %o and home %s is %s', (platform, env, home, file) => {
    expect(defaultFile(platform, env, home)).toBe(file)
  })

  it('without a home has to be named', () => {
    expect(() => defaultFile('linux', {}, '')).toThrow(/connect\('sqlite:/)
  })
})
