/** What the database tells a process about a claim: a list in JSON. */
export type News = { readonly name: string } & (
  | { readonly kind: 'granted'; readonly epoch: bigint; readonly at: number; readonly forMs: number; readonly waiting: number }
  | { readonly kind: 'contended' | 'revoked' }
)

/** Undefined for what is none. */
export function readNews(text: string): News | undefined {
  let told: unknown
  try {
    told = JSON.parse(text)
  } catch {
    return undefined
  }
  if (!Array.isArray(told)) return undefined
  const [kind, name, epoch, at, forMs, waiting] = told as unknown[]
  if (typeof name !== 'string') return undefined
  if (kind === 'contended' || kind === 'revoked') return { kind, name }
  const isGrant = kind === 'granted' && typeof epoch === 'string' && /^\d{1,19}$/.test(epoch)
    && [at, forMs, waiting].every((value) => typeof value === 'number')
  return isGrant ? { kind, name, epoch: BigInt(epoch), at: at as number, forMs: forMs as number, waiting: waiting as number } : undefined
}
