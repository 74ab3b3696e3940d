-- What stands in several procedures, where they say `{name}`.

-- The clock, in milliseconds. In a procedure UTC_TIMESTAMP is the time at which the statement began, not the call: so it is read in a
-- statement of its own after one that may have waited for a lock. (In a function it would be the time of the call.)
-- @statement now
{now_in_us} / 1e3

-- @statement nowInUs
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- Of the one row of `meta`; if somebody has emptied the tables, as if they were new.
-- @statement floor
COALESCE(MAX(m.floor), {now_in_us})

-- A step is one transaction, at READ COMMITTED: what it reads after it has waited for a row is what is there then. The connection is
-- left as it was: an isolation level without SESSION is that of the next transaction only, and what is set is put back. If the
-- connection is in the middle of somebody's transaction, the first statement fails, and nothing has happened. After ours there is none,
-- nor is the connection closed, whatever its completion_type says.
-- @statement variables
DECLARE is_ours BOOLEAN DEFAULT FALSE;
  DECLARE their_patience INT DEFAULT @@innodb_lock_wait_timeout;
  DECLARE their_length BIGINT UNSIGNED DEFAULT @@group_concat_max_len

-- @statement undo
DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
    IF is_ours THEN ROLLBACK AND NO CHAIN NO RELEASE; END IF;
    SET innodb_lock_wait_timeout = their_patience, group_concat_max_len = their_length;
    RESIGNAL;
  END

-- @statement begin
IF {only_reads} THEN
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'This server is read-only: locks are given by the primary';
  END IF;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION READ WRITE;
  SET is_ours = TRUE;
  SET innodb_lock_wait_timeout = 2, group_concat_max_len = 16777216

-- A replica, or a primary that hands over. Whoever made the procedures may be allowed to write there, and with its rights they would. It
-- is a number or, in later versions, a word.
-- @statement onlyReads
CONCAT(@@global.read_only) NOT IN ('0', 'OFF')

-- Whether a single statement is a transaction of its own: only then can it do without all that. MariaDB can say so, and limit the time
-- that one statement waits; for MySQL these are comments, and it always takes the long way.
-- @statement commitsByItself
FALSE /*M! OR (@@autocommit AND NOT @@in_transaction AND NOT ({only_reads})) */

-- @statement patiently
/*M! SET STATEMENT innodb_lock_wait_timeout = 2 FOR */

-- @statement commit
COMMIT AND NO CHAIN NO RELEASE;
  SET innodb_lock_wait_timeout = their_patience, group_concat_max_len = their_length

-- What was asked for. Digits stay what they are: as an expression longer than 512 bytes they would make a temporary table on disk.
-- @statement claimList
JSON_TABLE(list, '$[*]' COLUMNS (
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      asked_id VARCHAR(66) CHARACTER SET latin1 PATH '$.id',
      asked_take BIGINT PATH '$.take',
      asked_slots BIGINT PATH '$.slots',
      asked_ttl DOUBLE PATH '$.ttl',
      type_digits VARCHAR(8194) CHARACTER SET latin1 PATH '$.type',
      metadata_digits VARCHAR(8194) CHARACTER SET latin1 PATH '$.metadata',
      asked_place BIGINT PATH '$.place'
    ))

-- @statement renewalList
JSON_TABLE(list, '$[*]' COLUMNS (
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      asked_id VARCHAR(66) CHARACTER SET latin1 PATH '$.id',
      asked_ttl DOUBLE PATH '$.ttl',
      asked_exact_until DOUBLE PATH '$.exact_until',
      asked_given VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.given'
    ))

-- Of any list.
-- @statement keyList
JSON_TABLE(list, '$[*]' COLUMNS (
      place_in_list FOR ORDINALITY,
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      asked_id VARCHAR(66) CHARACTER SET latin1 PATH '$.id'
    ))

-- @statement comparisonList
JSON_TABLE(comparisons, '$[*]' COLUMNS (
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      asked_equal INT PATH '$.equal',
      asked_revision BIGINT PATH '$.revision'
    ))

-- @statement holdList
JSON_TABLE(holds, '$[*]' COLUMNS (
      place_in_list FOR ORDINALITY,
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      asked_token VARCHAR(512) CHARACTER SET utf8mb4 PATH '$.token'
    ))

-- @statement putList
JSON_TABLE(puts, '$[*]' COLUMNS (
      key_digits VARCHAR(2048) CHARACTER SET latin1 PATH '$.key',
      value_digits LONGTEXT CHARACTER SET latin1 PATH '$.value'
    ))

-- A row of `locks` that a lock can have at once: it is free or has expired, and nobody waits.
-- @statement isFree
(waiting = 0 AND (used = 0 OR (slots = 1 AND expires_at <= moment)))

-- A claim that can do with that: it is on a lock, and has not waited before.
-- @statement isPlain
(t.asked_slots = 1 AND t.asked_place IS NULL)

-- What is told about a holder, of which there are these columns.
-- @statement holder
CONCAT(
  '[', JSON_QUOTE(CONVERT(owner USING utf8mb4)), ',"', number, '",', moment - granted_at, ',', expires_at - moment, ',',
  COALESCE(CONCAT('"', HEX(type), '"'), 'null'), ',', COALESCE(CONCAT('"', HEX(metadata), '"'), 'null'), ']'
)
