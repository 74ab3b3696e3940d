/** What one process writes on another's bell: a line of JSON, so that a key may contain anything. */
export type News =
  /** `at`: the machine's time of the grant; null if the claim has to be asked for again. */
  | {
      readonly kind: 'granted'
      readonly resource: string
      readonly claimId: string
      readonly epoch: string
      readonly at: number | null
      readonly waiting: number
    }
  | { readonly kind: 'revoked' | 'contended'; readonly resource: string; readonly claimId: string }

export function writeNews(news: News): string {
  return `${JSON.stringify(news)}\n`
}

/** Undefined for what is none. */
export function readNews(line: string): News | undefined {
  let news: Partial<Record<string, unknown>>
  try {
    news = JSON.parse(line) as typeof news
  } catch {
    return undefined
  }
  if (typeof news !== 'object' || news === null || typeof news['resource'] !== 'string' || typeof news['claimId'] !== 'string') return undefined
  if (news['kind'] === 'revoked' || news['kind'] === 'contended') return news as News
  const { kind, epoch, at, waiting } = news
  const isGrant = kind === 'granted' && typeof epoch === 'string' && /^\d{1,19}$/.test(epoch)
    && (at === null || typeof at === 'number') && typeof waiting === 'number'
  return isGrant ? (news as News) : undefined
}
