import type { DistributedLock } from 'holdfast'

export function pay(order: string, lock: DistributedLock): Promise<{ order: string; paid: boolean; fence: string }>
export function pack(order: string, lock: DistributedLock): Promise<{ order: string; packed: boolean }>
export function announce(url: string): void
export function onEnd(close: () => unknown): void
export const port: number
