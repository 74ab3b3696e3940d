import { contenderOf } from '../contenders/index.mjs'

/** They need nothing but what the repository itself has installed. */
const SMOKE = [
  'holdfast', 'ioredis', 'holdfast on libsql', 'holdfast strict on libsql', 'libsql', 'holdfast on pg', 'transaction on pg',
  'update + NOTIFY', 'holdfast on etcd', 'node:http2', 'WATCH on ioredis', 'transfer on pg'
]

/** What takes part: by the pace, unless it is named. */
export function select(workloads, { pace, only, contenders }) {
  const isMeasured = ({ id, paces }) => (only ? matches(id, only) : pace === 'full' || paces.includes(pace))
  const takesPart = (id) => {
    if (contenders) return matches(id, contenders)
    if (pace === 'smoke') return SMOKE.includes(id)
    return pace === 'full' || contenderOf(id).quick
  }
  return workloads
    .filter(isMeasured)
    .map((workload) => ({ ...workload, contenders: workload.contenders.filter(takesPart) }))
    .filter((workload) => workload.contenders.length > 0)
}

function matches(id, names) {
  return names.split(',').some((name) => id.startsWith(name.trim()))
}
