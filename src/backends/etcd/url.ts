/**
 * URLs of etcd.
 *
 *   etcd://[user:password@]host[:port],host[:port]…
 *   etcds://…?ca=file&cert=file&key=file&servername=name      for TLS
 *
 * Files are in PEM. `new URL()` knows no lists of hosts. A URL may contain a password, so errors quote nothing of it.
 */
import { readFileSync } from 'node:fs'
import { ConfigurationError } from '../../core/errors.js'
import type { EtcdOptions } from './client/client.js'

const DEFAULT_PORT = '2379'
const FILES = ['ca', 'cert', 'key'] as const
const URL_PARTS = /^(?<scheme>etcds?):\/\/(?<authority>[^/?#]*)\/?(?:\?(?<query>[^#]*))?$/i
const HOST = /^(?<host>\[[0-9a-f:.]+\]|[^\s:[\]@%]+)(?::(?<port>\d{1,5}))?$/i

export function parseEtcdUrl(url: string): EtcdOptions {
  const parts = URL_PARTS.exec(url)?.groups
  if (!parts) throw refuse('This is no etcd: URL.')
  const hasTls = parts['scheme']!.toLowerCase() === 'etcds'
  const authority = parts['authority']!
  const at = authority.lastIndexOf('@')
  const [, username, password] = /^([^:]*):?(.*)$/s.exec(authority.slice(0, Math.max(at, 0)))!
  if (!username && password) throw refuse('A password in an etcd: URL is of a user.')
  const endpoints = authority.slice(at + 1).split(',').map((host) => endpointOf(host, hasTls ? 'https' : 'http'))
  const tls = tlsOf(new URLSearchParams(parts['query'] ?? ''), hasTls)
  return {
    endpoints,
    ...(username && { username: decode(username), password: decode(password!) }),
    ...(tls && { tls }),
  }
}

function endpointOf(text: string, scheme: string): string {
  const { host, port = DEFAULT_PORT } = HOST.exec(text)?.groups ?? {}
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535) {
    throw refuse('This etcd: URL has no proper host and port.')
  }
  return `${scheme}://${host}:${port}`
}

function tlsOf(query: URLSearchParams, hasTls: boolean): EtcdOptions['tls'] {
  const tls: Record<string, string> = {}
  for (const [name, value] of query) {
    if (name === 'servername') tls[name] = value
    else if (isFile(name)) tls[name] = contentsOf(name, value)
    else throw refuse('The parameters of an etcds: URL are ca, cert, key and servername.')
  }
  if (Object.keys(tls).length === 0) return undefined
  if (!hasTls) throw refuse('Only an etcds: URL has parameters: they are about TLS.')
  if (('cert' in tls) !== ('key' in tls)) throw refuse('In an etcds: URL, cert and key belong together.')
  return tls
}

function isFile(name: string): boolean {
  return (FILES as readonly string[]).includes(name)
}

function contentsOf(name: string, file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    throw new ConfigurationError(`The file that ${name} names cannot be read (${code}).`)
  }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw refuse('This etcd: URL has a % that encodes nothing.')
  }
}

function refuse(why: string): ConfigurationError {
  const form = 'etcd://user:password@host1:2379,host2:2379'
  const encoding = 'special characters in a name or password have to be percent-encoded'
  return new ConfigurationError(`${why} Such a URL is ${form}; ${encoding}.`)
}
