/**
 * URLs of Redis.
 *
 *   redis://[user:password@]host[:port][/database]
 *   redis+sentinel://[user:password@]host[:port],host[:port]…/master name[/database][?sentinelUsername=…&sentinelPassword=…]
 *   redis+cluster://[user:password@]host[:port],host[:port]…
 *
 * and the same with `rediss` for TLS. `new URL()` knows no lists of hosts. A URL may contain passwords, so errors quote nothing of it.
 */
import { ConfigurationError } from '../../core/errors.js'

export interface RedisAddress {
  readonly kind: 'single' | 'sentinel' | 'cluster'
  readonly tls: boolean
  /** Of the sentinels, or of some nodes of the cluster. */
  readonly hosts: readonly { readonly host: string; readonly port: number }[]
  readonly username: string | undefined
  readonly password: string | undefined
  readonly database: number
  /** Of a group that Sentinel watches over, what it is called there. */
  readonly masterName: string
  readonly sentinelUsername: string | undefined
  readonly sentinelPassword: string | undefined
}

const FORMS = {
  single: { scheme: '', port: 6379, path: /^(?:\/(?<database>\d*))?$/, parameters: [], form: 'redis://user:password@host:6379/0' },
  sentinel: {
    scheme: '+sentinel',
    port: 26379,
    path: /^\/(?<masterName>[^/]+)(?:\/(?<database>\d*))?$/,
    parameters: ['sentinelUsername', 'sentinelPassword'],
    form: 'redis+sentinel://user:password@host1:26379,host2:26379/mymaster/0',
  },
  cluster: { scheme: '+cluster', port: 6379, path: /^\/?$/, parameters: [], form: 'redis+cluster://user:password@host1:6379,host2:6379' },
} as const

const URL_PARTS = /^(?<scheme>rediss?(?:\+[a-z]+)?):\/\/(?<authority>[^/?#]*)(?<path>[^?#]*)(?:\?(?<query>[^#]*))?$/i
const HOST = /^(?<host>\[[0-9a-f:.]+\]|[^\s:[\]@]+)(?::(?<port>\d{1,5}))?$/i

export function parseRedisUrl(url: string): RedisAddress {
  const scheme = /^[a-z+]*/i.exec(url)![0].toLowerCase()
  const kind = scheme.endsWith('+sentinel') ? 'sentinel' : scheme.endsWith('+cluster') ? 'cluster' : 'single'
  const { port: defaultPort, path: pathForm, parameters, form } = FORMS[kind]
  const refuse = (why: string) =>
    new ConfigurationError(`${why} Such a URL is ${form}; special characters in a name or password have to be percent-encoded.`)

  const parts = URL_PARTS.exec(url)?.groups
  if (!parts) throw refuse(`This is no ${scheme}: URL.`)
  const decode = (text: string | undefined) => {
    if (text === undefined || text === '') return undefined
    try {
      return decodeURIComponent(text)
    } catch {
      throw refuse(`This ${scheme}: URL has a % that encodes nothing.`)
    }
  }

  const authority = parts['authority']!
  const at = authority.lastIndexOf('@')
  const [, username, password] = /^([^:]*):?(.*)$/s.exec(authority.slice(0, Math.max(at, 0)))!
  const hosts = authority.slice(at + 1).split(',').map((text) => {
    const { host, port = defaultPort } = HOST.exec(text)?.groups ?? {}
    if (host === undefined || Number(port) < 1 || Number(port) > 65_535) throw refuse(`This ${scheme}: URL has no proper host and port.`)
    return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) }
  })
  if (kind === 'single' && hosts.length > 1) throw refuse(`A ${scheme}: URL has one host. For several there are redis+sentinel: and redis+cluster:.`)

  const path = pathForm.exec(parts['path']!)?.groups
  if (kind === 'cluster' && !pathForm.test(parts['path']!)) throw refuse('A cluster has no databases.')
  if (kind === 'sentinel' && !path) throw refuse(`A ${scheme}: URL names the master, and perhaps the number of a database.`)
  if (kind === 'single' && !pathForm.test(parts['path']!)) throw refuse('The database is a number.')

  const query = new URLSearchParams(parts['query'] ?? '')
  for (const name of query.keys()) {
    if (!(parameters as readonly string[]).includes(name)) {
      throw refuse(parameters.length === 0 ? `A ${scheme}: URL has no parameters.` : `The parameters of a ${scheme}: URL are ${parameters.join(' and ')}.`)
    }
  }
  return {
    kind,
    tls: scheme.startsWith('rediss'),
    hosts,
    username: decode(username),
    password: decode(password),
    database: Number(path?.['database'] ?? 0),
    masterName: decode(path?.['masterName']) ?? '',
    sentinelUsername: query.get('sentinelUsername') ?? undefined,
    sentinelPassword: query.get('sentinelPassword') ?? undefined,
  }
}
