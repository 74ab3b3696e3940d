-- Keys with values and versions, for transactions. Each of these is a part of one, in a transaction of SQLite's.

-- ?: prefix, 0
-- @statement last
SELECT CAST(revision AS TEXT) AS revision, CAST(deleted AS TEXT) AS deleted FROM holdfast_stores WHERE prefix = ? AND revision > ?

-- ?: prefix, revision, revision of the last commit that deleted something
-- @statement advance
INSERT INTO holdfast_stores (prefix, revision, deleted) VALUES (?, CAST(? AS INTEGER), CAST(? AS INTEGER))
ON CONFLICT (prefix) DO UPDATE SET revision = excluded.revision, deleted = excluded.deleted

-- ?: prefix, key
-- @statement find
SELECT value, CAST(revision AS TEXT) AS revision FROM holdfast_entries WHERE prefix = ? AND key = ?

-- ?: prefix, key, value, revision
-- @statement put
INSERT INTO holdfast_entries (prefix, key, value, revision) VALUES (?, ?, ?, CAST(? AS INTEGER))
ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, revision = excluded.revision

-- ?: prefix, key
-- @statement remove
DELETE FROM holdfast_entries WHERE prefix = ? AND key = ?
