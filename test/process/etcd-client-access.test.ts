/** The client of etcd before a server that asks who it is: users and tokens, TLS and certificates. */
import { once } from 'node:events'
import { readFileSync, rmSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient, type EtcdOptions } from '../../src/backends/etcd/client/client.js'
import type { EtcdError } from '../../src/backends/etcd/client/errors.js'
import { parseEtcdUrl } from '../../src/backends/etcd/url.js'
import { connect as connectLocks, OwnershipLostError } from '../../src/index.js'
import { makeAuthority, type Authority, type CertificateFiles } from '../support/certificate.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { watching } from '../support/etcd-watching.js'
import { makeFolder } from '../support/processes.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'

const PASSWORD = 'canary-p:a/s%s'
const bytes = (text: string) => Buffer.from(text)
const failure = (work: Promise<unknown>) =>
  work.then(
    () => Promise.reject(new Error('It should have failed')),
    (error: EtcdError) => error,
  )

const open: EtcdClient[] = []
function connect(options: EtcdOptions): EtcdClient {
  const client = createEtcdClient(options)
  open.push(client)
  return client
}
afterEach(async () => {
  await Promise.all(open.splice(0).map((client) => client.close()))
})

describe('users', () => {
  const TOKEN_TTL_S = 1
  /** Longer than a token lives, and than the server takes to notice. */
  const expiry = () => sleep(TOKEN_TTL_S * 1_000 + 1_500)
  let etcd: EtcdServer
  let root: EtcdOptions

  beforeAll(async () => {
    etcd = await startEtcd({ password: PASSWORD, tokenTtlS: TOKEN_TTL_S })
    root = parseEtcdUrl(etcd.url)
    await etcd.ctl('role', 'add', 'reader')
    await etcd.ctl('role', 'grant-permission', 'reader', 'read', 'may/', 'may0')
    await etcd.ctl('user', 'add', `guest:${PASSWORD}`)
    await etcd.ctl('user', 'grant-role', 'guest', 'reader')
  })
  afterAll(() => etcd.stop())

  const put = (client: EtcdClient, key: string) =>
    client.txn({ success: [{ kind: 'put', key: bytes(key), value: bytes('value') }] })
  const all = { key: bytes('may/'), rangeEnd: bytes('may0') }

  async function authentications(): Promise<number> {
    const metrics = await (await fetch(`${etcd.endpoint}/metrics`)).text()
    return Number(/^grpc_server_started_total\{grpc_method="Authenticate".*\} (\d+)$/m.exec(metrics)?.[1] ?? 0)
  }

  it('are let in with their password, once for all calls at a time', async () => {
    const before = await authentications()
    const client = connect(root)
    await Promise.all(Array.from({ length: 50 }, (_, i) => put(client, `may/${i}`)))
    expect(await authentications()).toBe(before + 1)
  })

  it('are let in again when the token has expired', async () => {
    const client = connect(root)
    await put(client, 'may/a')
    await expiry()
    const before = await authentications()
    await Promise.all(Array.from({ length: 50 }, () => client.range({ key: bytes('may/a') })))
    expect(await authentications()).toBe(before + 1)
  })

  it('keep their leases and watches when the token has expired', async () => {
    const client = connect(root)
    const { id } = await client.leaseGrant(60)
    const early = watching(client, all)
    await early.hears('created')
    expect(await client.keepAlive(id, 500)).toBe(60)
    await expiry()
    expect(await client.keepAlive(id, 500)).toBe(60)
    const late = watching(client, { key: bytes('may/late') })
    await within(3_000, 'a watch after the token', late.hears('created'))
    await early.hears('created', 2)
    await put(client, 'may/late')
    await Promise.all([early.hears('put may/late'), late.hears('put may/late')])
    expect(early.heard).toEqual(['created', 'lost', 'created', 'put may/late'])
    expect(late.heard).toEqual(['created', 'put may/late'])
  })

  it('outlive a server that forgets its tokens', async () => {
    const client = connect(root)
    await put(client, 'may/a')
    const watch = watching(client, all)
    await watch.hears('created')
    await etcd.restart('kill')
    await put(client, 'may/b')
    await watch.hears('created', 2)
    await put(client, 'may/c')
    await watch.hears('put may/c')
  })

  it('may do what they may, and no more', async () => {
    const client = connect({ ...root, username: 'guest' })
    await client.range(all)
    const error = await failure(put(client, 'may/a'))
    expect(error).toMatchObject({ reason: 'permission', transient: false, mayBeDone: false })
    const allowed = watching(client, all)
    await allowed.hears('created')
    const refused = watching(client, { key: bytes('other') })
    await refused.hears('refused')
    expect(refused.refusals[0]).toMatchObject({ reason: 'permission' })
    await etcd.ctl('role', 'grant-permission', 'reader', 'read', 'other')
    await refused.hears('created')
    expect(allowed.heard).not.toContain('lost')
  })

  it.each([
    ['a wrong password', { password: 'canary-wrong' }, 'lets "root" not in: the user or the password is wrong'],
    ['an unknown user', { username: 'nobody' }, 'lets "nobody" not in'],
  ])('with %s are told so at once', async (_, options, message) => {
    const client = connect({ ...root, ...options })
    const error = await within(1_500, 'the refusal', failure(put(client, 'may/a')))
    expect(error).toMatchObject({ reason: 'unauthenticated', transient: false, mayBeDone: false })
    expect(error.message).toContain(message)
    expect(client.trouble).toBe(error)
    expect(inspect([error, client], { depth: 20, showHidden: true }) + error.stack).not.toContain('canary')
  })

  it('without a name are told so', async () => {
    const client = connect({ endpoints: [etcd.endpoint] })
    expect(await failure(put(client, 'may/a'))).toMatchObject({ reason: 'unauthenticated', transient: false })
  })

  it('are no secret in errors of any kind', async () => {
    const client = connect({ ...root, callTimeoutMs: 1_000 })
    await put(client, 'may/a')
    await etcd.pause()
    const errors = [await failure(put(client, 'may/a')), await failure(client.range(all))]
    errors.push(await failure(client.keepAlive(1n, 100)))
    await etcd.resume()
    await etcd.kill()
    errors.push(await failure(put(client, 'may/a')))
    await etcd.start()
    const everything = [errors, errors.map(({ stack }) => stack), client, client.trouble]
    const told = inspect(everything, { depth: 20, showHidden: true, maxStringLength: null })
    expect(told).not.toContain('canary')
    // Of a token that the server makes up: 16 letters, a point and a number.
    expect(told).not.toMatch(/[A-Za-z]{16}\.\d+/)
  })
})

describe('tokens that the server signs', () => {
  it('are asked for again when they have expired', async () => {
    await using etcd = await startEtcd({ password: PASSWORD, tokens: 'jwt', tokenTtlS: 1 })
    const client = connect(parseEtcdUrl(etcd.url))
    const key = bytes('a')
    const put = () => client.txn({ success: [{ kind: 'put', key, value: bytes('value') }] })
    await put()
    const early = watching(client, { key })
    await early.hears('created')
    await sleep(2_100)
    await put()
    await early.hears('put a')
    await sleep(2_100)
    const late = watching(client, { key })
    await within(3_000, 'a watch after the token', late.hears('created'))
    await put()
    await late.hears('put a')
  })
})

describe('a user where none is needed', () => {
  it('is not asked for the password', async () => {
    await using etcd = await startEtcd()
    const client = connect({ endpoints: [etcd.endpoint], username: 'root', password: PASSWORD })
    expect((await client.range({ key: bytes('a') })).count).toBe(0)
    // And when one is needed after all:
    await etcd.enableAuth(PASSWORD)
    expect((await client.range({ key: bytes('a') })).count).toBe(0)
  })
})

describe('TLS', () => {
  let etcd: EtcdServer
  let strict: EtcdServer
  const ask = (options: EtcdOptions) => connect(options).range({ key: bytes('a') })
  const pem = (file: string) => readFileSync(file, 'utf8')

  beforeAll(async () => {
    ;[etcd, strict] = await Promise.all([startEtcd({ tls: true }), startEtcd({ tls: true, clientCerts: true })])
  })
  afterAll(() => Promise.all([etcd.stop(), strict.stop()]))

  it('works with the CA of the server', async () => {
    const options = parseEtcdUrl(etcd.url)
    expect((await ask(options)).count).toBe(0)
    const client = connect(options)
    const { id } = await client.leaseGrant(60)
    expect(await client.keepAlive(id, 500)).toBe(60)
    const watch = watching(client, { key: bytes('a') })
    await watch.hears('created')
  })

  it('works for a name of the certificate', async () => {
    const tls = { ca: pem(etcd.certificateFile), servername: 'localhost' }
    expect((await ask({ endpoints: [etcd.endpoint], tls })).count).toBe(0)
  })

  it('works with a certificate of our own', async () => {
    const files = `cert=${strict.certificateFile}&key=${strict.keyFile}`
    expect((await ask(parseEtcdUrl(`${strict.url}&${files}`))).count).toBe(0)
  })

  it.each<[string, () => EtcdOptions, RegExp]>([
    ['a certificate that nobody has signed', () => ({ endpoints: [etcd.endpoint] }), /No TLS with .*SELF_SIGNED/],
    [
      'a certificate for somebody else',
      () => ({ endpoints: [etcd.endpoint], tls: { ca: pem(etcd.certificateFile), servername: 'other.example' } }),
      /No TLS with .*other\.example/,
    ],
    ['no certificate of our own', () => parseEtcdUrl(strict.url), /No TLS with .*(CERT|ALERT)/i],
    [
      'a certificate of our own that is none',
      () => ({ endpoints: [etcd.endpoint], tls: { cert: 'x', key: 'x' } }),
      /No TLS with .*PEM/,
    ],
    ['a server without TLS', () => ({ endpoints: [etcd.endpoint.replace('https:', 'http:')] }), /cannot be reached/],
  ])('says what is wrong: %s', async (_, options, message) => {
    const client = connect({ ...options(), callTimeoutMs: 1_500 })
    const error = await failure(client.range({ key: bytes('a') }))
    expect(error.message).toMatch(message)
    expect(error).toMatchObject({ reason: 'unreachable', mayBeDone: false })
    expect(client.trouble?.message).toMatch(message)
  })

  it('does not try for long what cannot be right', async () => {
    const startedAt = performance.now()
    await failure(ask({ endpoints: [etcd.endpoint, etcd.endpoint.replace('127.0.0.1', 'localhost')] }))
    expect(performance.now() - startedAt).toBeLessThan(1_000)
  })
})

describe('TLS with a certificate of the CA, one of the server and one of ours', () => {
  const folder = makeFolder('certificates')
  let authority: Authority
  let etcd: EtcdServer

  beforeAll(async () => {
    authority = await makeAuthority(folder)
    const { ca, server } = authority
    const files = [`--cert-file=${server.certificate}`, `--key-file=${server.key}`, `--trusted-ca-file=${ca.certificate}`]
    // What it is told last is what it does: the certificate of its own folder is not used.
    etcd = await startEtcd({ tls: true, args: [...files, '--client-cert-auth=true'] })
  })
  afterAll(async () => {
    await etcd.stop()
    rmSync(folder, { recursive: true })
  })

  const urlWith = ({ certificate, key }: CertificateFiles, ca = authority.ca.certificate) => {
    return `etcds://127.0.0.1:${etcd.port}?${new URLSearchParams({ ca, cert: certificate, key }).toString()}`
  }

  it('locks, waits its turn and is told of a loss', async () => {
    const open = async () => {
      const locks = await connectLocks(urlWith(authority.client))
      onTestFinished(() => locks.close())
      return locks
    }
    const [locks, others] = [await open(), await open()]
    const first = await locks.lock('k')
    const waiting = others.lock('k')
    await until('the other to wait', async () => {
      for await (const { waiters } of locks.inspect('k')) return waiters.length === 1
      return false
    })
    expect(await first.release()).toBe(true)
    const second = await within(2_000, 'its turn', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
    const lost = once(second.signal, 'abort')
    expect(await locks.forceRelease('k', { now: true })).toBe(true)
    // A renewal would tell, too, but is seconds away.
    await within(2_000, 'the loss', lost)
    expect(second.signal.reason).toBeInstanceOf(OwnershipLostError)
  })

  it.each<[string, () => string]>([
    ['a certificate that the CA has not signed', () => urlWith({ certificate: etcd.certificateFile, key: etcd.keyFile })],
    ['a server whose CA is another', () => urlWith(authority.client, etcd.certificateFile)],
  ])('says what is wrong: %s', async (_, url) => {
    const error = await failure(connect({ ...parseEtcdUrl(url()), callTimeoutMs: 1_500 }).range({ key: bytes('a') }))
    expect(error.message).toMatch(/No TLS with .*(CERT|ALERT|UNABLE_TO_)/i)
    expect(error).toMatchObject({ reason: 'unreachable', mayBeDone: false })
  })
})
