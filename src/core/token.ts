/**
 * A held claim's name on the store: `<claim id>.<epoch>.<owner>`. Whoever knows it can release the lock, so it is never logged.
 */
export function tokenOf(claimId: string, epoch: bigint, owner: string): string {
  return `${claimId}.${epoch}.${owner}`
}

export function parseToken(token: string): { claimId: string; epoch: bigint; owner: string } | undefined {
  const match = /^([0-9a-f]{32})\.(\d{1,20})\.(.+)$/s.exec(token)
  return match ? { claimId: match[1]!, epoch: BigInt(match[2]!), owner: match[3]! } : undefined
}
