-- Those who wait, and the holders of what has more than one slot.

-- ?: id, prefix, key
-- @statement find
SELECT held, CAST(number AS TEXT) AS number, id, owner, take, ttl_ms, revoked, type, metadata, granted_at, expires_at
FROM holdfast_claims WHERE id = ? AND prefix = ? AND key = ?

-- Who is next.
-- ?: prefix, key
-- @statement head
SELECT held, CAST(number AS TEXT) AS number, id, owner, take, ttl_ms, revoked, type, metadata, granted_at, expires_at
FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 0 ORDER BY number LIMIT 1

-- ?: prefix, key, number
-- @statement countBefore
SELECT count(*) AS count FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 0 AND number < CAST(? AS INTEGER)

-- ?: prefix, key, number
-- @statement isTaken
SELECT 1 AS taken FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 0 AND number = CAST(? AS INTEGER)

-- ?: prefix, key, held, number, id, owner, take, ttl ms, type, metadata, granted at, expires at
-- @statement add
INSERT INTO holdfast_claims (prefix, key, held, number, id, owner, take, ttl_ms, type, metadata, granted_at, expires_at)
VALUES (?, ?, ?, CAST(? AS INTEGER), ?, ?, ?, ?, ?, ?, ?, ?)

-- ?: prefix, key, held, number
-- @statement remove
DELETE FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = ? AND number = CAST(? AS INTEGER)

-- ?: id, owner, revoked, expires at, prefix, key, number
-- @statement saveHolder
UPDATE holdfast_claims SET id = ?, owner = ?, revoked = ?, expires_at = ?
WHERE prefix = ? AND key = ? AND held = 1 AND number = CAST(? AS INTEGER)

-- ?: prefix, key, now
-- @statement expire
DELETE FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 1 AND expires_at <= ? RETURNING take

-- In the order of their grants.
-- ?: prefix, key
-- @statement holders
SELECT held, CAST(number AS TEXT) AS number, id, owner, take, ttl_ms, revoked, type, metadata, granted_at, expires_at
FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 1 ORDER BY number

-- The holder that will be free first.
-- ?: prefix, key
-- @statement firstToExpire
SELECT held, CAST(number AS TEXT) AS number, id, owner, take, ttl_ms, revoked, type, metadata, granted_at, expires_at
FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 1 ORDER BY expires_at, number LIMIT 1

-- In the order of their tickets.
-- ?: prefix, key
-- @statement waiters
SELECT owner, take FROM holdfast_claims WHERE prefix = ? AND key = ? AND held = 0 ORDER BY number
