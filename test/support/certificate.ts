/**
 * Certificates for servers on loopback: one that is signed by itself, so that whoever trusts it trusts nothing else; or those of a CA,
 * one for the server and one for its clients.
 */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { giveAway, pathOf } from './unprivileged.js'

export interface CertificateFiles {
  readonly certificate: string
  readonly key: string
}

export interface Authority {
  readonly ca: CertificateFiles
  readonly server: CertificateFiles
  readonly client: CertificateFiles
}

const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
const ON_LOOPBACK = 'subjectAltName=DNS:localhost,IP:127.0.0.1'
/** Ten years: the clocks of tests are stepped. */
const LIFETIME = ['-days', '3650']

export function certificateFiles(folder: string): CertificateFiles {
  return filesOf(folder, 'server')
}

export async function makeCertificate(folder: string): Promise<void> {
  await makeSelfSigned(certificateFiles(folder), 'localhost', ON_LOOPBACK)
}

/** The CA's own is good for nothing but to sign, and the client's for nothing but a client. */
export async function makeAuthority(folder: string): Promise<Authority> {
  const [ca, server, client] = [filesOf(folder, 'ca'), filesOf(folder, 'server'), filesOf(folder, 'client')]
  await makeSelfSigned(ca, 'CA', 'keyUsage=critical,keyCertSign')
  await makeSigned(server, ca, 'server', ON_LOOPBACK)
  await makeSigned(client, ca, 'client', 'extendedKeyUsage=clientAuth')
  return { ca, server, client }
}

function filesOf(folder: string, name: string): CertificateFiles {
  return { certificate: join(folder, `${name}.crt`), key: join(folder, `${name}.key`) }
}

async function makeSelfSigned({ certificate, key }: CertificateFiles, name: string, extension: string): Promise<void> {
  const files = ['-keyout', key, '-out', certificate]
  await openssl('req', '-x509', ...NEW_KEY, '-subj', `/CN=${name}`, '-addext', extension, ...LIFETIME, ...files)
  giveAway(certificate, key)
}

async function makeSigned({ certificate, key }: CertificateFiles, ca: CertificateFiles, name: string, extension: string): Promise<void> {
  const request = `${certificate}.csr`
  await openssl('req', '-new', ...NEW_KEY, '-subj', `/CN=${name}`, '-addext', extension, '-keyout', key, '-out', request)
  const signer = ['-CA', ca.certificate, '-CAkey', ca.key, '-CAcreateserial', '-copy_extensions', 'copyall']
  await openssl('x509', '-req', '-in', request, ...signer, ...LIFETIME, '-out', certificate)
  giveAway(certificate, key)
}

async function openssl(...args: readonly string[]): Promise<void> {
  await promisify(execFile)(pathOf({ name: 'openssl', debian: 'openssl' }), args)
}
