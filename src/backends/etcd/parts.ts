/** What the steps are made of; each part takes those that it needs. */
import type { Scope } from '../../core/backend.js'
import type { Directories } from './directories.js'
import type { Fates } from './fates.js'
import type { Keys } from './keys.js'
import type { Leases } from './leases.js'
import type { Lookouts } from './lookouts.js'
import type { Others } from './others.js'
import type { Releasing } from './releasing.js'
import type { Renewing } from './renewing.js'
import type { Sweeper } from './sweeper.js'
import type { Txns } from './txns.js'

export interface Parts {
  readonly scope: Scope
  readonly keys: Keys
  readonly txns: Txns
  readonly leases: Leases
  readonly directories: Directories
  readonly lookouts: Lookouts
  readonly others: Others
  readonly sweeper: Sweeper
  readonly fates: Fates
  readonly renewing: Renewing
  readonly releasing: Releasing
}
