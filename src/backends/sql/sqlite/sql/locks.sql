-- Resources: one row each, the only point at which a key is serialised.

-- Grants a lock that is free, or has expired, and for which nobody waits: one statement is all that most claims need.
-- No row comes back if it is not to be had that simply.
-- ?: prefix, key, id, owner, type, metadata, now, expires at, now, now
-- @statement take
INSERT INTO holdfast_locks AS it (
  prefix, key, slots, used, waiting, last, epoch, id, owner, type, metadata, granted_at, expires_at, created_at, updated_at
)
SELECT ?, ?, 1, 1, 0, floor + 1, floor + 1, ?, ?, ?, ?, ?, ?, ?, ? FROM holdfast_meta WHERE true
ON CONFLICT (prefix, key) DO UPDATE SET
  slots = 1, used = 1, last = it.last + 1, epoch = it.last + 1, revoked = 0, id = excluded.id, owner = excluded.owner,
  type = excluded.type, metadata = excluded.metadata, granted_at = excluded.granted_at, expires_at = excluded.expires_at,
  updated_at = excluded.updated_at
WHERE it.waiting = 0 AND (it.used = 0 OR (it.slots = 1 AND it.expires_at <= excluded.granted_at))
RETURNING CAST(epoch AS TEXT) AS epoch

-- Frees a lock for which nobody waits.
-- ?: now, prefix, key, id, now
-- @statement drop
UPDATE holdfast_locks SET used = 0, id = NULL, owner = NULL, type = NULL, metadata = NULL, updated_at = ?
WHERE prefix = ? AND key = ? AND id = ? AND waiting = 0 AND slots = 1 AND expires_at > ?

-- Renews a lock that is still its owner's. Never shortens.
-- ?: expires at, now, prefix, key, id, owner, now
-- @statement keep
UPDATE holdfast_locks SET expires_at = max(expires_at, ?), updated_at = ?
WHERE prefix = ? AND key = ? AND id = ? AND owner = ? AND slots = 1 AND revoked = 0 AND expires_at > ?
RETURNING waiting

-- ?: prefix, key
-- @statement find
SELECT slots, used, waiting, CAST(last AS TEXT) AS last, id, owner, CAST(epoch AS TEXT) AS epoch, revoked, type, metadata,
  granted_at, expires_at
FROM holdfast_locks WHERE prefix = ? AND key = ?

-- ?: prefix, key, now, now
-- @statement make
INSERT INTO holdfast_locks (prefix, key, slots, used, waiting, last, expires_at, created_at, updated_at)
SELECT ?, ?, 1, 0, 0, floor, 0, ?, ? FROM holdfast_meta
RETURNING CAST(last AS TEXT) AS last

-- ?: slots, used, waiting, last, id, owner, epoch, revoked, type, metadata, granted at, expires at, now, prefix, key
-- @statement save
UPDATE holdfast_locks SET
  slots = ?, used = ?, waiting = ?, last = CAST(? AS INTEGER), id = ?, owner = ?, epoch = CAST(? AS INTEGER), revoked = ?,
  type = ?, metadata = ?, granted_at = ?, expires_at = ?, updated_at = ?
WHERE prefix = ? AND key = ?

-- A page of the resources whose keys begin with some text, in use or not.
-- ?: prefix, key (after this one), length of the text, the text, how many
-- @statement page
SELECT key, slots, used, waiting, CAST(last AS TEXT) AS last, id, owner, CAST(epoch AS TEXT) AS epoch, revoked, type, metadata,
  granted_at, expires_at
FROM holdfast_locks
WHERE prefix = ? AND key > ? AND substr(key, 1, ?) = ?
ORDER BY key LIMIT ?

-- A page of all resources, to look for what nobody uses any more.
-- ?: prefix, prefix, key (after this one), how many
-- @statement pageOfAll
SELECT prefix, key, slots, used, waiting, expires_at, updated_at
FROM holdfast_locks
WHERE prefix > ? OR (prefix = ? AND key > ?)
ORDER BY prefix, key LIMIT ?

-- ?: prefix, key, idle since, idle since
-- @statement removeIdle
DELETE FROM holdfast_locks
WHERE prefix = ? AND key = ? AND waiting = 0 AND updated_at <= ? AND (used = 0 OR (slots = 1 AND expires_at <= ?))
RETURNING CAST(last AS TEXT) AS last
