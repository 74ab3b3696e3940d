-- Processes that wait: whether they are still there.

-- ?: owner, pid, pid space, alive until
-- @statement heard
INSERT INTO holdfast_clients (owner, pid, pid_space, alive_until) VALUES (?, ?, ?, ?)
ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until

-- ?: owner
-- @statement find
SELECT pid, pid_space, alive_until FROM holdfast_clients WHERE owner = ?

-- ?: owner
-- @statement remove
DELETE FROM holdfast_clients WHERE owner = ?

-- ?: alive until
-- @statement forget
DELETE FROM holdfast_clients WHERE alive_until <= ?
