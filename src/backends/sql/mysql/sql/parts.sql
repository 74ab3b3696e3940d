-- What stands in several procedures, where they say `{name}`.

-- The clock, in milliseconds. In a procedure UTC_TIMESTAMP is the time at which the statement began, not the call: so it is read in a
-- statement of its own after one that may have waited for a lock. (In a function it would be the time of the call.)
-- @statement now
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e3

-- A step is one transaction, at READ COMMITTED: what it reads after it has waited for a row is what is there then. The connection is
-- left as it was: an isolation level without SESSION is that of the next transaction only, and the time to wait for a lock is
-- put back. If the connection is in the middle of somebody's transaction, the first statement fails, and nothing has happened.
-- @statement variables
DECLARE is_ours BOOLEAN DEFAULT FALSE;
  DECLARE patience INT DEFAULT @@innodb_lock_wait_timeout

-- @statement undo
DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    IF is_ours THEN ROLLBACK; END IF;
    SET innodb_lock_wait_timeout = patience;
    RESIGNAL;
  END

-- @statement begin
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SET is_ours = TRUE;
  SET innodb_lock_wait_timeout = 2

-- @statement commit
COMMIT;
  SET innodb_lock_wait_timeout = patience

-- What is told about a holder, of which there are these columns.
-- @statement holder
CONCAT(
  '[', JSON_QUOTE(CONVERT(owner USING utf8mb4)), ',"', number, '",', moment - granted_at, ',', expires_at - moment, ',',
  COALESCE(CONCAT('"', HEX(type), '"'), 'null'), ',', COALESCE(CONCAT('"', HEX(metadata), '"'), 'null'), ']'
)
