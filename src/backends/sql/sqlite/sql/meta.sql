-- The whole file: its version, the boot that its times belong to, and the numbers below which none is drawn again.

-- @statement find
SELECT version, boot FROM holdfast_meta

-- The floor of a new file is the time of day in microseconds: fences of a file that was deleted are lower.
-- ?: version, floor, boot
-- @statement make
INSERT INTO holdfast_meta (one, version, floor, boot, tidied_at) VALUES (1, ?, CAST(? AS INTEGER), ?, 0)

-- After a boot nobody holds or waits. What was committed last before a power loss may be gone, its epochs with it; so the floor
-- jumps by more than could have been drawn since the file was last synchronised.
-- ?: time of day in microseconds, jump, boot
-- @statement boot
UPDATE holdfast_meta SET
  floor = max(CAST(? AS INTEGER), ? + max(floor, (SELECT coalesce(max(last), 0) FROM holdfast_locks))),
  boot = ?, tidied_at = 0

-- @statement forgetLocks
DELETE FROM holdfast_locks

-- @statement forgetClaims
DELETE FROM holdfast_claims

-- @statement forgetClients
DELETE FROM holdfast_clients

-- One process tidies, and the others see that it did.
-- ?: now, not after
-- @statement tidy
UPDATE holdfast_meta SET tidied_at = ? WHERE tidied_at <= ?

-- In the transaction that deletes rows.
-- ?: the highest number in them
-- @statement raise
UPDATE holdfast_meta SET floor = max(floor, CAST(? AS INTEGER)) WHERE one = ?
