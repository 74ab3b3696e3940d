-- The layout, version 1. Names carry `holdfast_`, since the file may be the caller's own.
--
-- Times are milliseconds of the machine's monotonic clock: one clock for all its processes, which starts anew with each boot.
-- `boot` says with which; when it is another, no claim counts any more (see meta.sql).
-- Keys, types and metadata are blobs: text would be cut at a NUL by some clients, and compared by somebody's collation.
-- Numbers (tickets and epochs) travel as text: from 2^53 on a JavaScript number would round them.

-- One row: what is true of the whole file.
--   floor      no number up to this one is drawn for a new row: raised when rows are deleted, so that epochs only grow
--   tidied_at  when somebody last looked for idle rows
CREATE TABLE IF NOT EXISTS holdfast_meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  version INTEGER NOT NULL,
  floor INTEGER NOT NULL,
  boot TEXT NOT NULL,
  tidied_at REAL NOT NULL
);

-- One row per resource, in use or used less than a minute ago.
--   slots, used, waiting  the limit, how much of it is taken, and how many wait
--   last                  the last number drawn, for a ticket or an epoch
--   id … metadata         the holder, if the limit is 1; others are in holdfast_claims
--   expires_at            when the holder expires; of several, none does before this
CREATE TABLE IF NOT EXISTS holdfast_locks (
  prefix BLOB NOT NULL,
  key BLOB NOT NULL,
  slots INTEGER NOT NULL,
  used INTEGER NOT NULL,
  waiting INTEGER NOT NULL,
  last INTEGER NOT NULL,
  id TEXT,
  owner TEXT,
  epoch INTEGER,
  revoked INTEGER NOT NULL DEFAULT 0,
  type BLOB,
  metadata BLOB,
  granted_at REAL,
  expires_at REAL NOT NULL,
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  PRIMARY KEY (prefix, key)
) WITHOUT ROWID;

-- Claims that wait, and those that hold where the limit is above 1.
--   number  its ticket while it waits, its epoch once it holds
CREATE TABLE IF NOT EXISTS holdfast_claims (
  prefix BLOB NOT NULL,
  key BLOB NOT NULL,
  held INTEGER NOT NULL,
  number INTEGER NOT NULL,
  id TEXT NOT NULL,
  owner TEXT NOT NULL,
  take INTEGER NOT NULL,
  ttl_ms REAL NOT NULL,
  revoked INTEGER NOT NULL DEFAULT 0,
  type BLOB,
  metadata BLOB,
  granted_at REAL,
  expires_at REAL,
  PRIMARY KEY (prefix, key, held, number)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS holdfast_claims_by_id ON holdfast_claims (id);

-- Processes that wait (an owner is one manager in one): one row, however many claims.
--   pid, pid_space  whom to ask the system for, and whether that is anybody whom we can see. Negative: one of its threads, which may
--                   have ended before it
--   alive_until     when it counts as gone, unless it is heard of before
CREATE TABLE IF NOT EXISTS holdfast_clients (
  owner TEXT PRIMARY KEY,
  pid INTEGER NOT NULL,
  pid_space TEXT NOT NULL,
  alive_until REAL NOT NULL
) WITHOUT ROWID;

-- What transactions work on has nothing to do with claims, and outlasts a boot. One row per prefix.
--   revision  of the last commit
--   deleted   of the last commit that deleted something: what is not there now may have been there before it
CREATE TABLE IF NOT EXISTS holdfast_stores (
  prefix BLOB PRIMARY KEY,
  revision INTEGER NOT NULL,
  deleted INTEGER NOT NULL
) WITHOUT ROWID;

--   revision  of the commit that wrote it
CREATE TABLE IF NOT EXISTS holdfast_entries (
  prefix BLOB NOT NULL,
  key BLOB NOT NULL,
  value BLOB NOT NULL,
  revision INTEGER NOT NULL,
  PRIMARY KEY (prefix, key)
);
