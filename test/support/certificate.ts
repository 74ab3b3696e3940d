/** A certificate for servers on loopback. It is signed by itself: whoever trusts it trusts nothing else. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { giveAway, pathOf } from './unprivileged.js'

export interface CertificateFiles {
  readonly certificate: string
  readonly key: string
}

export function certificateFiles(folder: string): CertificateFiles {
  return { certificate: join(folder, 'server.crt'), key: join(folder, 'server.key') }
}

export async function makeCertificate(folder: string): Promise<void> {
  const { certificate, key } = certificateFiles(folder)
  const kind = ['-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1']
  // Ten years: the clocks of tests are stepped.
  const files = ['-days', '3650', '-keyout', key, '-out', certificate]
  await promisify(execFile)(pathOf({ name: 'openssl', debian: 'openssl' }), ['req', ...kind, ...subject, ...files])
  giveAway(certificate, key)
}
