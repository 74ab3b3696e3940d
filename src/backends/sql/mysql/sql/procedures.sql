-- The steps: each is one call, and one transaction. The same text serves MariaDB (10.6 and later) and MySQL (8.0.29 and later): it has
-- nothing that only one of them knows, such as RETURNING or rows as variables. It is tested on MariaDB 10.11 only; there was no
-- MySQL server to test it on.
--
-- They are procedures and not functions: a function runs within a statement, with the time at which that began, and sees the rows as
-- they were then. They run with the rights of whoever made them (SQL SECURITY DEFINER), so that a user who takes and releases locks
-- needs no rights to the tables, in which everybody's claim ids are.
--
-- What is only read is read by SELECT … INTO: in a SET or an IF, InnoDB locks the rows that a subquery reads.
-- Lists come as JSON, sorted by key. `the_…` is what was asked for, `it_…` is the row of `locks` as it is. What is the most common, a
-- free lock or one that nobody waits for, is one statement for one by itself, and a few for a list; whatever they leave over is done
-- one by one. INSERT … ON DUPLICATE KEY UPDATE changes many rows by key at once, in the order of the list (UPDATE … JOIN
-- writes them to a temporary table first, at twice the cost), and it makes or locks a row, where SELECT … FOR UPDATE cannot lock one
-- that is not there, so that two would insert it.

-- Whoever holds it is told something, if it is known to ask: it has waited lately. Others find out by their renewals. What was told
-- and not read yet is not told again.
-- @statement tellHolders
CREATE PROCEDURE IF NOT EXISTS {tell_holders}(
  the_prefix VARBINARY(255), the_key VARBINARY(512), it_slots BIGINT, kind VARBINARY(16), also_revoked BOOLEAN, moment DOUBLE
)
BEGIN
  DECLARE whom VARBINARY(255);
  DECLARE what VARBINARY(64);
  DECLARE unread INT;
  IF it_slots > 1 THEN
    INSERT INTO {news} (owner, news, written_at)
    SELECT c.owner, CONCAT('["', kind, '","', LEFT(c.id, {name_length}), '"]'), moment
    FROM {claims} c JOIN {clients} p ON p.owner = c.owner
    WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE AND (also_revoked OR NOT c.revoked) AND NOT EXISTS (
      SELECT 1 FROM {news} n WHERE n.owner = c.owner AND n.news = CONCAT('["', kind, '","', LEFT(c.id, {name_length}), '"]')
    );
  ELSE
    SELECT MAX(p.owner), MAX(CONCAT('["', kind, '","', LEFT(l.id, {name_length}), '"]')) INTO whom, what
    FROM {locks} l JOIN {clients} p ON p.owner = l.owner
    WHERE l.prefix = the_prefix AND l.`key` = the_key AND l.used > 0 AND (also_revoked OR NOT l.revoked);
    IF whom IS NOT NULL THEN
      SELECT COUNT(*) INTO unread FROM {news} n WHERE n.owner = whom AND n.news = what;
      IF unread = 0 THEN INSERT INTO {news} (owner, news, written_at) VALUES (whom, what, moment); END IF;
    END IF;
  END IF;
END

-- Lets a claim have a resource in which there is room for it.
-- @statement grant
CREATE PROCEDURE IF NOT EXISTS {grant}(
  the_prefix VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64), the_owner VARBINARY(255), the_take BIGINT, the_ttl DOUBLE,
  the_type VARBINARY(4096), the_metadata VARBINARY(4096), was_waiting INT, moment DOUBLE, until DOUBLE, OUT drawn BIGINT
)
BEGIN
  DECLARE it_slots BIGINT;
  UPDATE {locks} l SET
    l.last = l.last + 1,
    l.id = IF(l.slots = 1, the_id, NULL), l.owner = IF(l.slots = 1, the_owner, NULL), l.epoch = IF(l.slots = 1, l.last, NULL),
    l.revoked = FALSE, l.type = IF(l.slots = 1, the_type, NULL), l.metadata = IF(l.slots = 1, the_metadata, NULL),
    l.granted_at = IF(l.slots = 1, moment, NULL), l.expires_at = IF(l.used = 0 OR until < l.expires_at, until, l.expires_at),
    l.used = l.used + the_take, l.waiting = l.waiting - was_waiting, l.updated_at = moment
  WHERE l.prefix = the_prefix AND l.`key` = the_key;
  SELECT l.last, l.slots INTO drawn, it_slots FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  IF it_slots > 1 THEN
    INSERT INTO {claims} (prefix, `key`, held, number, id, owner, take, ttl_ms, type, metadata, granted_at, expires_at)
    VALUES (the_prefix, the_key, TRUE, drawn, the_id, the_owner, the_take, the_ttl, the_type, the_metadata, moment, until);
  END IF;
END

-- Ends the hold with this epoch; who is next comes in when the resource is settled.
-- @statement end
CREATE PROCEDURE IF NOT EXISTS {end}(the_prefix VARBINARY(255), the_key VARBINARY(512), the_epoch BIGINT, moment DOUBLE)
BEGIN
  DECLARE its_take BIGINT;
  SELECT MAX(c.take) INTO its_take
  FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE AND c.number = the_epoch;
  IF its_take IS NOT NULL THEN
    DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = TRUE AND number = the_epoch;
    UPDATE {locks} l SET l.used = l.used - its_take, l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
  ELSE
    UPDATE {locks} l SET
      l.used = 0, l.id = NULL, l.owner = NULL, l.epoch = NULL, l.revoked = FALSE, l.type = NULL, l.metadata = NULL,
      l.granted_at = NULL, l.expires_at = 0, l.updated_at = moment
    WHERE l.prefix = the_prefix AND l.`key` = the_key;
  END IF;
END

-- Ends what has expired and lets in whoever is next: the first thing that is done to a row. `asker` (a claim) hears of it by its
-- answer. The process of a waiter may have died since it was last heard of. So whoever is let in has the resource for no longer
-- than its process counts as there, until it asks again or renews.
-- @statement settle
CREATE PROCEDURE IF NOT EXISTS {settle}(
  the_prefix VARBINARY(255), the_key VARBINARY(512), asker VARBINARY(64), us VARBINARY(255), moment DOUBLE
)
BEGIN
  DECLARE it_slots, it_used, it_epoch, drawn BIGINT;
  DECLARE it_waiting INT;
  DECLARE it_expires_at, alive_until, until DOUBLE;
  DECLARE head_number, head_take BIGINT DEFAULT -1;
  DECLARE head_id VARBINARY(64);
  DECLARE head_owner VARBINARY(255);
  DECLARE head_type, head_metadata VARBINARY(4096);
  DECLARE head_ttl DOUBLE;
  SELECT l.slots, l.used, l.waiting, l.epoch, l.expires_at INTO it_slots, it_used, it_waiting, it_epoch, it_expires_at
  FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  IF it_used > 0 AND it_expires_at <= moment THEN
    IF it_slots = 1 THEN
      CALL {end}(the_prefix, the_key, it_epoch, moment);
      SET it_used = 0;
    ELSE
      DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = TRUE AND expires_at <= moment;
      SELECT COALESCE(SUM(c.take), 0), COALESCE(MIN(c.expires_at), 0) INTO it_used, it_expires_at
      FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE;
      UPDATE {locks} l SET l.used = it_used, l.expires_at = it_expires_at, l.updated_at = moment
      WHERE l.prefix = the_prefix AND l.`key` = the_key;
    END IF;
  END IF;
  waiters: WHILE it_waiting > 0 DO
    -- From the last one on: those that were deleted are still passed by, so each would cost as much as all before it.
    SELECT c.number, c.id, c.owner, c.take, c.ttl_ms, c.type, c.metadata
    INTO head_number, head_id, head_owner, head_take, head_ttl, head_type, head_metadata
    FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = FALSE AND c.number > head_number
    ORDER BY c.number LIMIT 1;
    SET alive_until = moment + {gone_ms};
    IF head_owner <> us THEN
      SELECT COALESCE(MAX(p.alive_until), 0) INTO alive_until FROM {clients} p WHERE p.owner = head_owner;
    END IF;
    IF alive_until > moment AND it_used + head_take > it_slots THEN LEAVE waiters; END IF;
    DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = FALSE AND number = head_number;
    SET it_waiting = it_waiting - 1;
    IF alive_until <= moment THEN
      -- Nobody has heard of it for long: it finds its place again when it comes back.
      UPDATE {locks} l SET l.waiting = it_waiting, l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
    ELSE
      SET until = moment + head_ttl;
      IF NOT head_id <=> asker THEN SET until = LEAST(until, alive_until); END IF;
      CALL {grant}(the_prefix, the_key, head_id, head_owner, head_take, head_ttl, head_type, head_metadata, 1, moment, until, drawn);
      SET it_used = it_used + head_take;
      IF NOT head_id <=> asker THEN
        INSERT INTO {news} (owner, news, written_at) VALUES (
          head_owner,
          CONCAT('["granted","', LEFT(head_id, {name_length}), '","', drawn, '",', moment, ',', until - moment, ',', it_waiting, ']'),
          moment
        );
      END IF;
    END IF;
  END WHILE;
END

-- Of several holders, the one that will be free first: owner, epoch, for how long it has held, when it expires, type, metadata.
-- @statement blocker
CREATE PROCEDURE IF NOT EXISTS {blocker}(
  the_prefix VARBINARY(255), the_key VARBINARY(512), it_slots BIGINT, moment DOUBLE, OUT holder LONGBLOB
)
BEGIN
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET holder = 'null';
  IF it_slots > 1 THEN
    SELECT {holder} INTO holder
    FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE ORDER BY c.expires_at, c.number LIMIT 1;
  ELSE
    SELECT {holder} INTO holder
    FROM (SELECT l.*, l.epoch AS number FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key AND l.used > 0) h;
  END IF;
END

-- One claim, whatever is the matter with its resource, whose row is locked. `waits`: whether some claim of this process does.
-- → held, epoch, waiting, whether it was passed over | queued, place, ahead, waiting, holder, whether it was passed over
--   | refused, ahead, waiting, holder | revoked, epoch | limit, slots
-- @statement claimOne
CREATE PROCEDURE IF NOT EXISTS {claim_one}(
  the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64), the_take BIGINT, the_slots BIGINT,
  the_ttl DOUBLE, the_type VARBINARY(4096), the_metadata VARBINARY(4096), the_place BIGINT, queues BOOLEAN, INOUT waits BOOLEAN,
  OUT answer LONGBLOB
)
steps: BEGIN
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE it_slots, it_used, it_last, it_epoch BIGINT;
  DECLARE it_waiting INT;
  DECLARE it_expires_at DOUBLE;
  DECLARE it_id VARBINARY(64);
  DECLARE it_revoked, own_revoked BOOLEAN;
  DECLARE own, ticket, drawn BIGINT;
  DECLARE ahead INT;
  DECLARE holder LONGBLOB;
  SELECT l.slots, l.used, l.waiting, l.last, l.expires_at, l.id, l.epoch, l.revoked
  INTO it_slots, it_used, it_waiting, it_last, it_expires_at, it_id, it_epoch, it_revoked
  FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  IF it_waiting > 0 OR (it_used > 0 AND it_expires_at <= moment) THEN
    CALL {settle}(the_prefix, the_key, the_id, us, moment);
    SELECT l.slots, l.used, l.waiting, l.last, l.expires_at, l.id, l.epoch, l.revoked
    INTO it_slots, it_used, it_waiting, it_last, it_expires_at, it_id, it_epoch, it_revoked
    FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  END IF;
  IF it_used = 0 AND it_waiting = 0 AND it_slots <> the_slots THEN
    UPDATE {locks} l SET l.slots = the_slots, l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
    SET it_slots = the_slots;
  END IF;
  IF it_slots <> the_slots THEN
    SET answer = CONCAT('["limit",', it_slots, ']');
    LEAVE steps;
  END IF;
  IF it_slots = 1 AND it_used > 0 AND it_id = the_id THEN
    SET own = it_epoch, own_revoked = it_revoked;
  ELSEIF it_slots > 1 AND it_used > 0 THEN
    SELECT MAX(h.number), MAX(h.revoked) INTO own, own_revoked
    FROM {claims} h WHERE h.id = the_id AND h.prefix = the_prefix AND h.`key` = the_key AND h.held = TRUE;
  END IF;
  IF own IS NOT NULL AND own_revoked THEN
    SET answer = CONCAT('["revoked","', own, '"]');
    LEAVE steps;
  ELSEIF own IS NOT NULL THEN
    IF it_slots = 1 THEN
      UPDATE {locks} l SET l.expires_at = GREATEST(l.expires_at, moment + the_ttl), l.updated_at = moment
      WHERE l.prefix = the_prefix AND l.`key` = the_key;
    ELSE
      UPDATE {claims} h SET h.expires_at = GREATEST(h.expires_at, moment + the_ttl)
      WHERE h.prefix = the_prefix AND h.`key` = the_key AND h.held = TRUE AND h.number = own;
    END IF;
    SET answer = CONCAT('["held","', own, '",', it_waiting, ',false]');
    LEAVE steps;
  END IF;
  IF it_waiting > 0 THEN
    SELECT MAX(w.number) INTO own
    FROM {claims} w WHERE w.id = the_id AND w.prefix = the_prefix AND w.`key` = the_key AND w.held = FALSE;
  END IF;
  IF own IS NOT NULL AND NOT queues THEN
    DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = FALSE AND number = own;
    UPDATE {locks} l SET l.waiting = l.waiting - 1, l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
    CALL {settle}(the_prefix, the_key, NULL, us, moment);
    SELECT l.waiting INTO it_waiting FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
    CALL {blocker}(the_prefix, the_key, it_slots, moment, holder);
    SET answer = CONCAT('["refused",', it_waiting, ',', it_waiting, ',', holder, ']');
    LEAVE steps;
  ELSEIF own IS NOT NULL THEN
    SET waits = TRUE;
    SELECT COUNT(*) INTO ahead
    FROM {claims} w WHERE w.prefix = the_prefix AND w.`key` = the_key AND w.held = FALSE AND w.number < own;
    IF ahead = 0 THEN CALL {tell_holders}(the_prefix, the_key, it_slots, 'contended', FALSE, moment); END IF;
    CALL {blocker}(the_prefix, the_key, it_slots, moment, holder);
    SET answer = CONCAT('["queued","', own, '",', ahead, ',', it_waiting - 1, ',', holder, ',false]');
    LEAVE steps;
  END IF;
  -- It is new, or was passed over: then it has its place again, if it can be that.
  SET ahead = it_waiting;
  IF the_place <= it_last AND it_waiting = 0 THEN
    SET ticket = the_place;
  ELSEIF the_place <= it_last THEN
    SELECT IF(COUNT(w.number = the_place OR NULL) = 0, the_place, NULL), COUNT(w.number < the_place OR NULL) INTO ticket, ahead
    FROM {claims} w WHERE w.prefix = the_prefix AND w.`key` = the_key AND w.held = FALSE AND w.number <= the_place;
    IF ticket IS NULL THEN SET ahead = it_waiting; END IF;
  END IF;
  IF ahead = 0 AND it_used + the_take <= it_slots THEN
    CALL {grant}(the_prefix, the_key, the_id, us, the_take, the_ttl, the_type, the_metadata, 0, moment, moment + the_ttl, drawn);
    SET answer = CONCAT('["held","', drawn, '",', it_waiting, ',', IF(the_place IS NULL, 'false', 'true'), ']');
    LEAVE steps;
  ELSEIF NOT queues THEN
    CALL {blocker}(the_prefix, the_key, it_slots, moment, holder);
    SET answer = CONCAT('["refused",', it_waiting, ',', it_waiting, ',', holder, ']');
    LEAVE steps;
  END IF;
  SET ticket = COALESCE(ticket, it_last + 1);
  INSERT INTO {claims} (prefix, `key`, held, number, id, owner, take, ttl_ms, type, metadata)
  VALUES (the_prefix, the_key, FALSE, ticket, the_id, us, the_take, the_ttl, the_type, the_metadata);
  UPDATE {locks} l SET l.last = GREATEST(l.last, ticket), l.waiting = l.waiting + 1, l.updated_at = moment
  WHERE l.prefix = the_prefix AND l.`key` = the_key;
  SET waits = TRUE;
  IF ahead = 0 THEN CALL {tell_holders}(the_prefix, the_key, it_slots, 'contended', FALSE, moment); END IF;
  CALL {blocker}(the_prefix, the_key, it_slots, moment, holder);
  SET answer = CONCAT(
    '["queued","', ticket, '",', ahead, ',', it_waiting, ',', holder, ',', IF(the_place IS NULL, 'false', 'true'), ']'
  );
END

-- A process that waits is there, for a while. Last in a transaction, since it does so in others at the same time.
-- @statement stay
CREATE PROCEDURE IF NOT EXISTS {stay}(us VARBINARY(255))
BEGIN
  DECLARE until, was_until DOUBLE;
  SET until = {now} + {gone_ms};
  SELECT COALESCE(MAX(p.alive_until), 0) INTO was_until FROM {clients} p WHERE p.owner = us;
  IF was_until < until - 100 THEN
    INSERT INTO {clients} (owner, alive_until) VALUES (us, until) ON DUPLICATE KEY UPDATE alive_until = GREATEST(alive_until, until);
  END IF;
END

-- The one claim of a list. What needs many variables is not in the procedure that is called most: each is set up anew.
-- @statement claimOnly
CREATE PROCEDURE IF NOT EXISTS {claim_only}(
  the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, queues BOOLEAN, OUT answers LONGBLOB
)
steps: BEGIN
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE is_plain, waits BOOLEAN DEFAULT FALSE;
  DECLARE answer LONGBLOB;
  DECLARE the_key VARBINARY(512);
  DECLARE the_type, the_metadata VARBINARY(4096);
  DECLARE the_id VARBINARY(64);
  DECLARE the_take, the_slots, the_place, it_last BIGINT;
  DECLARE the_ttl DOUBLE;
  SELECT UNHEX(t.key_digits), t.asked_id, t.asked_take, t.asked_slots, t.asked_ttl, UNHEX(t.type_digits), UNHEX(t.metadata_digits),
    t.asked_place, {is_plain}
  INTO the_key, the_id, the_take, the_slots, the_ttl, the_type, the_metadata, the_place, is_plain
  FROM {claim_list} t;
  -- Made, and then it can be had at once; or locked.
  INSERT INTO {locks} (
    prefix, `key`, slots, used, waiting, last, epoch, id, owner, type, metadata, granted_at, expires_at, created_at, updated_at
  ) VALUES (
    the_prefix, the_key, the_slots, is_plain, 0, 0, NULL, IF(is_plain, the_id, NULL), IF(is_plain, us, NULL),
    IF(is_plain, the_type, NULL), IF(is_plain, the_metadata, NULL), IF(is_plain, moment, NULL), IF(is_plain, moment + the_ttl, 0),
    moment, moment
  )
  ON DUPLICATE KEY UPDATE waiting = waiting;
  SELECT l.last INTO it_last FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  IF it_last = 0 THEN
    -- The floor is read after the row was made: whoever deleted the one before has raised it.
    SELECT {floor} + 1 INTO it_last FROM {meta} m;
    UPDATE {locks} l SET l.last = it_last, l.epoch = IF(is_plain, it_last, NULL) WHERE l.prefix = the_prefix AND l.`key` = the_key;
    IF is_plain THEN
      SET answers = CONCAT(',["held","', it_last, '",0,false]');
      LEAVE steps;
    END IF;
  END IF;
  CALL {claim_one}(
    the_prefix, us, the_key, the_id, the_take, the_slots, the_ttl, the_type, the_metadata, the_place, queues, waits, answer
  );
  SET answers = CONCAT(',', answer);
  IF waits THEN CALL {stay}(us); END IF;
END

-- The claims of a list, one after the other. Their rows are locked.
-- @statement claimEach
CREATE PROCEDURE IF NOT EXISTS {claim_each}(
  the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, size INT, queues BOOLEAN, OUT answers LONGBLOB
)
BEGIN
  DECLARE done INT DEFAULT 0;
  DECLARE waits BOOLEAN DEFAULT FALSE;
  DECLARE answer LONGBLOB;
  DECLARE key_digits VARCHAR(2048) CHARACTER SET latin1;
  DECLARE type_digits, metadata_digits VARCHAR(8194) CHARACTER SET latin1;
  DECLARE the_id VARBINARY(64);
  DECLARE the_take, the_slots, the_place BIGINT;
  DECLARE the_ttl DOUBLE;
  DECLARE items CURSOR FOR
    SELECT t.key_digits, t.asked_id, t.asked_take, t.asked_slots, t.asked_ttl, t.type_digits, t.metadata_digits, t.asked_place
    FROM {claim_list} t;
  SET answers = '';
  OPEN items;
  WHILE done < size DO
    FETCH items INTO key_digits, the_id, the_take, the_slots, the_ttl, type_digits, metadata_digits, the_place;
    CALL {claim_one}(
      the_prefix, us, UNHEX(key_digits), the_id, the_take, the_slots, the_ttl, UNHEX(type_digits), UNHEX(metadata_digits), the_place,
      queues, waits, answer
    );
    SET done = done + 1, answers = CONCAT(answers, ',', answer);
  END WHILE;
  CLOSE items;
  IF waits THEN CALL {stay}(us); END IF;
END

-- list: key, id, take, slots, ttl, type, metadata, place
-- → what comes of each
-- @statement claim
CREATE PROCEDURE IF NOT EXISTS {claim}(
  the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, queues BOOLEAN
)
BEGIN
  {variables};
  DECLARE stamp BIGINT DEFAULT {now_in_us};
  DECLARE moment DOUBLE DEFAULT stamp / 1e3;
  DECLARE size, done INT DEFAULT 0;
  DECLARE lowest BIGINT;
  DECLARE answers LONGBLOB;
  {undo};
  {begin};
  SET size = JSON_LENGTH(list);
  IF size = 1 THEN
    CALL {claim_only}(the_prefix, us, list, queues, answers);
  ELSE
    -- All rows are made, or locked, and those that can have what they want at once get it. All with one epoch, the time, if that is
    -- higher than what they had: so nothing has to be read if it was all of them, which is seen from their number (each row that was
    -- changed counts as two).
    INSERT INTO {locks} (
      prefix, `key`, slots, used, waiting, last, epoch, id, owner, type, metadata, granted_at, expires_at, created_at, updated_at
    )
    SELECT the_prefix, UNHEX(t.key_digits), t.asked_slots, {is_plain}, 0, 0, IF({is_plain}, 0, NULL), IF({is_plain}, t.asked_id, NULL),
      IF({is_plain}, us, NULL), UNHEX(IF({is_plain}, t.type_digits, NULL)), UNHEX(IF({is_plain}, t.metadata_digits, NULL)),
      IF({is_plain}, moment, NULL), IF({is_plain}, moment + t.asked_ttl, 0), moment, moment
    FROM {claim_list} t
    ON DUPLICATE KEY UPDATE
      used = IF({is_free} AND {is_plain} AND last < stamp, -1, used),
      slots = IF(used < 0, 1, slots), last = IF(used < 0, stamp, last), epoch = IF(used < 0, last, epoch),
      id = IF(used < 0, t.asked_id, id), owner = IF(used < 0, us, owner), revoked = IF(used < 0, FALSE, revoked),
      type = IF(used < 0, UNHEX(t.type_digits), type), metadata = IF(used < 0, UNHEX(t.metadata_digits), metadata),
      granted_at = IF(used < 0, moment, granted_at), expires_at = IF(used < 0, moment + t.asked_ttl, expires_at),
      updated_at = IF(used < 0, moment, updated_at), used = ABS(used);
    IF ROW_COUNT() = 2 * size THEN
      SET done = size, answers = REPEAT(CONCAT(',["held","', stamp, '",0,false]'), size);
    ELSE
      SELECT COALESCE(SUM(l.used > 0 AND l.id = t.asked_id AND l.granted_at = moment), 0), MIN(l.last),
        GROUP_CONCAT(',["held","', l.epoch, '",0,false]' ORDER BY t.place_in_list SEPARATOR '')
      INTO done, lowest, answers
      FROM {key_list} t STRAIGHT_JOIN {locks} l ON l.prefix = the_prefix AND l.`key` = UNHEX(t.key_digits);
      IF lowest = 0 THEN
        -- Some rows are new. The floor is read after they were made: whoever deleted the ones before has raised it.
        SELECT {floor} + 1 INTO lowest FROM {meta} m;
        INSERT INTO {locks} (prefix, `key`, slots, used, waiting, last, expires_at, created_at, updated_at)
        SELECT the_prefix, UNHEX(t.key_digits), 1, 0, 0, 0, 0, moment, moment FROM {key_list} t
        ON DUPLICATE KEY UPDATE epoch = IF(last = 0 AND used > 0, lowest, epoch), last = IF(last = 0, lowest, last);
        SET answers = REPLACE(answers, ',["held","0"', CONCAT(',["held","', lowest, '"'));
      END IF;
    END IF;
    IF done < size THEN CALL {claim_each}(the_prefix, us, list, size, queues, answers); END IF;
  END IF;
  {commit};
  SELECT CONCAT('[', moment, ',[', SUBSTRING(answers, 2), ']]') AS result;
END

-- A claim without a type and metadata on a lock that it has not waited for, by itself: most are. One statement is a transaction by
-- itself, and needs no setting up. If it does not do, the list of one is asked for. → the same as of a list
-- @statement claimLock
CREATE PROCEDURE IF NOT EXISTS {claim_lock}(
  the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64), the_ttl DOUBLE, queues BOOLEAN
)
steps: BEGIN
  IF {commits_by_itself} THEN
    {patiently} UPDATE {locks} SET
      last = LAST_INSERT_ID(last + 1), epoch = last, id = the_id, owner = us, revoked = FALSE, type = NULL, metadata = NULL,
      granted_at = {now}, updated_at = granted_at, slots = 1, expires_at = granted_at + the_ttl, used = 1
    WHERE prefix = the_prefix AND `key` = the_key AND waiting = 0 AND (used = 0 OR (slots = 1 AND expires_at <= {now}));
    IF ROW_COUNT() > 0 THEN
      SELECT CONCAT('[', {now}, ',[["held","', LAST_INSERT_ID(), '",0,false]]]') AS result;
      LEAVE steps;
    END IF;
  END IF;
  CALL {claim}(
    the_prefix, us, CONCAT('[{"key":"', HEX(the_key), '","id":"', the_id, '","take":1,"slots":1,"ttl":', the_ttl, '}]'), queues
  );
END

-- → held, waiting | lost | revoked
-- @statement renewOne
CREATE PROCEDURE IF NOT EXISTS {renew_one}(
  the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64), the_ttl DOUBLE, exact_until DOUBLE,
  given VARBINARY(1024), OUT answer VARBINARY(64)
)
steps: BEGIN
  DECLARE moment, until, own_expires_at DOUBLE;
  DECLARE it_slots, own BIGINT;
  DECLARE own_revoked BOOLEAN;
  SET answer = '["lost"]';
  SELECT MAX(l.slots) INTO it_slots FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key FOR UPDATE;
  IF it_slots IS NULL THEN LEAVE steps; END IF;
  SET moment = {now};
  CALL {settle}(the_prefix, the_key, the_id, us, moment);
  BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
    SELECT h.number, h.revoked, h.expires_at INTO own, own_revoked, own_expires_at
    FROM (
      SELECT l.id, l.owner, l.epoch AS number, l.revoked, l.expires_at
      FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key AND l.slots = 1 AND l.used > 0
      UNION ALL
      SELECT c.id, c.owner, c.number, c.revoked, c.expires_at
      FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE
    ) h
    WHERE (h.id = the_id AND h.owner = us) OR CONCAT(h.id, '.', h.number, '.', h.owner) = given
    ORDER BY h.id = the_id DESC LIMIT 1;
  END;
  IF own IS NULL THEN LEAVE steps; END IF;
  IF own_revoked THEN
    SET answer = '["revoked"]';
    LEAVE steps;
  END IF;
  SET until = moment + the_ttl;
  IF exact_until IS NULL OR moment > exact_until THEN SET until = GREATEST(until, own_expires_at); END IF;
  IF it_slots = 1 THEN
    UPDATE {locks} l SET l.id = the_id, l.owner = us, l.expires_at = until, l.updated_at = moment
    WHERE l.prefix = the_prefix AND l.`key` = the_key;
  ELSE
    UPDATE {claims} h SET h.id = the_id, h.owner = us, h.expires_at = until
    WHERE h.prefix = the_prefix AND h.`key` = the_key AND h.held = TRUE AND h.number = own;
    UPDATE {locks} l SET l.expires_at = LEAST(l.expires_at, until), l.updated_at = moment
    WHERE l.prefix = the_prefix AND l.`key` = the_key;
  END IF;
  SELECT CONCAT('["held",', l.waiting, ']') INTO answer FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
END

-- list: key, id, ttl, exact until (of the database's clock; later it only lengthens), given (the token of a claim that was given away)
-- → what comes of each
-- @statement renew
CREATE PROCEDURE IF NOT EXISTS {renew}(the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4)
BEGIN
  {variables};
  DECLARE began DOUBLE DEFAULT {now};
  DECLARE moment DOUBLE;
  DECLARE size, done INT DEFAULT 0;
  DECLARE answers LONGBLOB DEFAULT '';
  DECLARE answer, the_id VARBINARY(64);
  DECLARE key_digits VARCHAR(2048) CHARACTER SET latin1;
  DECLARE the_key VARBINARY(512);
  DECLARE the_ttl, exact_until DOUBLE;
  DECLARE given VARBINARY(1024);
  DECLARE items CURSOR FOR
    SELECT t.key_digits, t.asked_id, t.asked_ttl, t.asked_exact_until, t.asked_given FROM {renewal_list} t;
  {undo};
  {begin};
  SET size = JSON_LENGTH(list);
  OPEN items;
  WHILE done < size DO
    FETCH items INTO key_digits, the_id, the_ttl, exact_until, given;
    SET the_key = UNHEX(key_digits), moment = {now}, answer = NULL;
    IF exact_until IS NULL AND given IS NULL THEN
      UPDATE {locks} l SET l.expires_at = GREATEST(l.expires_at, moment + the_ttl), l.updated_at = moment
      WHERE l.prefix = the_prefix AND l.`key` = the_key AND l.id = the_id AND l.owner = us AND NOT l.revoked AND l.expires_at > moment;
      IF ROW_COUNT() > 0 THEN
        SELECT CONCAT('["held",', l.waiting, ']') INTO answer FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
      END IF;
    END IF;
    IF answer IS NULL THEN
      CALL {renew_one}(the_prefix, us, the_key, the_id, the_ttl, exact_until, given, answer);
    END IF;
    SET done = done + 1, answers = CONCAT(answers, ',', answer);
  END WHILE;
  CLOSE items;
  {commit};
  SELECT CONCAT('[', began, ',[', SUBSTRING(answers, 2), ']]') AS result;
END

-- One claim that holds or waits, perhaps for what others wait for, too. → released | not-held
-- @statement releaseOne
CREATE PROCEDURE IF NOT EXISTS {release_one}(
  the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64), OUT answer VARBINARY(64)
)
steps: BEGIN
  DECLARE moment DOUBLE;
  DECLARE it_slots, own BIGINT;
  SET answer = '"not-held"';
  SELECT MAX(l.slots) INTO it_slots FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key FOR UPDATE;
  IF it_slots IS NULL THEN LEAVE steps; END IF;
  SET moment = {now};
  CALL {settle}(the_prefix, the_key, NULL, us, moment);
  IF it_slots = 1 THEN
    SELECT MAX(l.epoch) INTO own FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key AND l.used > 0 AND l.id = the_id;
  ELSE
    SELECT MAX(c.number) INTO own
    FROM {claims} c WHERE c.id = the_id AND c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE;
  END IF;
  IF own IS NOT NULL THEN
    SET answer = '"released"';
    CALL {end}(the_prefix, the_key, own, moment);
    CALL {settle}(the_prefix, the_key, NULL, us, moment);
    LEAVE steps;
  END IF;
  SELECT MAX(c.number) INTO own
  FROM {claims} c WHERE c.id = the_id AND c.prefix = the_prefix AND c.`key` = the_key AND c.held = FALSE;
  IF own IS NOT NULL THEN
    DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = FALSE AND number = own;
    UPDATE {locks} l SET l.waiting = l.waiting - 1, l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
    -- It may have been too big for what is free, and kept smaller ones from it.
    CALL {settle}(the_prefix, the_key, NULL, us, moment);
  END IF;
END

-- @statement releaseEach
CREATE PROCEDURE IF NOT EXISTS {release_each}(
  the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, size INT, OUT answers LONGBLOB
)
BEGIN
  DECLARE done INT DEFAULT 0;
  DECLARE answer, the_id VARBINARY(64);
  DECLARE key_digits VARCHAR(2048) CHARACTER SET latin1;
  DECLARE items CURSOR FOR SELECT t.key_digits, t.asked_id FROM {key_list} t;
  SET answers = '';
  OPEN items;
  WHILE done < size DO
    FETCH items INTO key_digits, the_id;
    CALL {release_one}(the_prefix, us, UNHEX(key_digits), the_id, answer);
    SET done = done + 1, answers = CONCAT(answers, ',', answer);
  END WHILE;
  CLOSE items;
END

-- list: key, id → what comes of each
-- @statement release
CREATE PROCEDURE IF NOT EXISTS {release}(the_prefix VARBINARY(255), us VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4)
BEGIN
  {variables};
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE size INT;
  DECLARE answers LONGBLOB;
  {undo};
  {begin};
  SET size = JSON_LENGTH(list);
  -- Locks that nobody waits for. It is seen only whether it was all of them: each row that was changed counts as two. If not, it
  -- is undone, and so are rows that were not there.
  SAVEPOINT before_all;
  INSERT INTO {locks} (prefix, `key`, slots, used, waiting, last, expires_at, created_at, updated_at)
  SELECT the_prefix, UNHEX(t.key_digits), 1, 0, 0, 0, 0, moment, moment FROM {key_list} t
  ON DUPLICATE KEY UPDATE
    used = IF(id = t.asked_id AND waiting = 0 AND expires_at > moment, -1, used),
    expires_at = IF(used < 0, 0, expires_at), updated_at = IF(used < 0, moment, updated_at), used = GREATEST(used, 0);
  IF ROW_COUNT() = 2 * size THEN
    SET answers = REPEAT(',"released"', size);
  ELSE
    ROLLBACK TO SAVEPOINT before_all;
    CALL {release_each}(the_prefix, us, list, size, answers);
  END IF;
  {commit};
  SELECT CONCAT('[', moment, ',[', SUBSTRING(answers, 2), ']]') AS result;
END

-- One by itself: see `claimLock`. → nothing if it was released and nobody waits, since a row for an answer would cost a tenth; else the
-- same as of a list
-- @statement releaseLock
CREATE PROCEDURE IF NOT EXISTS {release_lock}(
  the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), the_id VARBINARY(64)
)
steps: BEGIN
  IF {commits_by_itself} THEN
    {patiently} UPDATE {locks} SET used = 0, expires_at = 0, updated_at = {now}
    WHERE prefix = the_prefix AND `key` = the_key AND id = the_id AND waiting = 0 AND expires_at > {now};
    IF ROW_COUNT() > 0 THEN LEAVE steps; END IF;
  END IF;
  CALL {release}(the_prefix, us, CONCAT('[{"key":"', HEX(the_key), '","id":"', the_id, '"}]'));
END

-- → free | told | freed
-- @statement revoke
CREATE PROCEDURE IF NOT EXISTS {revoke}(the_prefix VARBINARY(255), us VARBINARY(255), the_key VARBINARY(512), at_once BOOLEAN)
BEGIN
  {variables};
  DECLARE moment DOUBLE;
  DECLARE it_used, it_slots BIGINT;
  DECLARE answer VARBINARY(16) DEFAULT 'free';
  {undo};
  {begin};
  SELECT MAX(l.used) INTO it_used FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key FOR UPDATE;
  SET moment = {now};
  IF it_used IS NOT NULL THEN
    CALL {settle}(the_prefix, the_key, NULL, us, moment);
    SELECT l.used, l.slots INTO it_used, it_slots FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = the_key;
  END IF;
  IF it_used > 0 THEN
    -- Also if it was told before: whoever asks twice has seen no effect.
    CALL {tell_holders}(the_prefix, the_key, it_slots, 'revoked', TRUE, moment);
    IF at_once THEN
      SET answer = 'freed';
      DELETE FROM {claims} WHERE prefix = the_prefix AND `key` = the_key AND held = TRUE;
      UPDATE {locks} l SET
        l.used = 0, l.id = NULL, l.owner = NULL, l.epoch = NULL, l.revoked = FALSE, l.type = NULL, l.metadata = NULL,
        l.granted_at = NULL, l.expires_at = 0, l.updated_at = moment
      WHERE l.prefix = the_prefix AND l.`key` = the_key;
      CALL {settle}(the_prefix, the_key, NULL, us, moment);
    ELSE
      SET answer = 'told';
      UPDATE {locks} l SET l.revoked = (l.slots = 1), l.updated_at = moment WHERE l.prefix = the_prefix AND l.`key` = the_key;
      UPDATE {claims} c SET c.revoked = TRUE WHERE c.prefix = the_prefix AND c.`key` = the_key AND c.held = TRUE;
    END IF;
  END IF;
  {commit};
  SELECT CONCAT('[', moment, ',"', answer, '"]') AS result;
END

-- A page of what is in use, with keys that begin with some text, and the last key that was looked at.
-- → last, [key, slots, [holder, take] …, [owner, take] …] …
-- @statement inspect
CREATE PROCEDURE IF NOT EXISTS {inspect}(
  the_prefix VARBINARY(255), beginning VARBINARY(512), after_key VARBINARY(512), most INT
)
BEGIN
  {variables};
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE before_last INT DEFAULT most - 1;
  DECLARE last_key VARBINARY(512);
  DECLARE seen LONGBLOB;
  {undo};
  {begin};
  SELECT MAX(p.`key`) INTO last_key
  FROM (
    SELECT l.`key` FROM {locks} l
    WHERE l.prefix = the_prefix AND l.`key` > after_key AND l.`key` >= beginning AND LEFT(l.`key`, LENGTH(beginning)) = beginning
    ORDER BY l.`key` LIMIT before_last, 1
  ) p;
  -- One statement, so that it is of one moment.
  SELECT GROUP_CONCAT(CONCAT('["', HEX(p.`key`), '",', p.slots, ',[', p.holders, '],[', p.waiters, ']]') ORDER BY p.`key`) INTO seen
  FROM (
    SELECT r.`key`, r.slots, IF(
      r.slots = 1, IF(r.used > 0 AND r.expires_at > moment, CONCAT('[', {holder}, ',1]'), ''), COALESCE((
        SELECT GROUP_CONCAT(CONCAT('[', {holder}, ',', c.take, ']') ORDER BY c.number)
        FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = r.`key` AND c.held = TRUE AND c.expires_at > moment
      ), '')
    ) AS holders, COALESCE((
      SELECT GROUP_CONCAT(CONCAT('[', JSON_QUOTE(CONVERT(c.owner USING utf8mb4)), ',', c.take, ']') ORDER BY c.number)
      FROM {claims} c WHERE c.prefix = the_prefix AND c.`key` = r.`key` AND c.held = FALSE
    ), '') AS waiters
    FROM (
      SELECT l.`key`, l.slots, l.used, l.owner, l.epoch AS number, l.type, l.metadata, l.granted_at, l.expires_at
      FROM {locks} l
      WHERE l.prefix = the_prefix AND l.`key` > after_key AND l.`key` >= beginning AND LEFT(l.`key`, LENGTH(beginning)) = beginning
        AND (last_key IS NULL OR l.`key` <= last_key) AND (l.used > 0 OR l.waiting > 0)
    ) r
  ) p WHERE p.holders <> '' OR p.waiters <> '';
  {commit};
  SELECT CONCAT(
    '[', moment, ',[', COALESCE(CONCAT('"', HEX(last_key), '"'), 'null'), ',[', COALESCE(seen, ''), ']]]'
  ) AS result;
END

-- What was left for a process.
-- @statement readNews
CREATE PROCEDURE IF NOT EXISTS {read_news}(us VARBINARY(255))
BEGIN
  {variables};
  DECLARE began DOUBLE DEFAULT {now};
  DECLARE is_over BOOLEAN DEFAULT FALSE;
  DECLARE answers LONGBLOB DEFAULT '';
  DECLARE its_number BIGINT;
  DECLARE its_news VARBINARY(255);
  DECLARE items CURSOR FOR SELECT n.number, n.news FROM {news} n WHERE n.owner = us ORDER BY n.number;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
  {undo};
  {begin};
  OPEN items;
  each_item: LOOP
    FETCH items INTO its_number, its_news;
    IF is_over THEN LEAVE each_item; END IF;
    SET answers = CONCAT(answers, ',', JSON_QUOTE(CONVERT(its_news USING utf8mb4)));
    -- Only what was read: more may have come meanwhile.
    DELETE FROM {news} WHERE number = its_number;
  END LOOP;
  CLOSE items;
  {commit};
  SELECT CONCAT('[', began, ',[', SUBSTRING(answers, 2), ']]') AS result;
END

-- What it waits for is passed over from now on; what it holds stays until it expires.
-- @statement leave
CREATE PROCEDURE IF NOT EXISTS {leave}(us VARBINARY(255))
BEGIN
  {variables};
  {undo};
  {begin};
  DELETE FROM {clients} WHERE owner = us;
  DELETE FROM {news} WHERE owner = us;
  {commit};
  SELECT CONCAT('[', {now}, ',null]') AS result;
END

-- InnoDB lets others see a commit before it is on the disk: whoever has read it must not hear of that before it is, or it may be gone
-- when the server is killed. Whatever is written and committed now is on the disk only after all that was there to be seen. A binary
-- log has everybody wait before they see anything; but not what a session keeps out of it, nor one that is InnoDB's own.
-- @statement keep
CREATE PROCEDURE IF NOT EXISTS {keep}()
BEGIN
  DECLARE its_id VARBINARY(64) DEFAULT UUID();
  INSERT INTO {commits} (id, revision, written_at) VALUES (its_id, NULL, {now});
  DELETE FROM {commits} WHERE id = its_id;
END

-- What is there of some keys, in one statement and so at one moment: the revision, and value and revision of each. If it is to be as of an
-- earlier revision: null, if one of them has changed since, or may have been deleted. `newest`: of the last change to one of them.
-- @statement seeKeys
CREATE PROCEDURE IF NOT EXISTS {see_keys}(
  the_prefix VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, at_revision BIGINT, OUT seen LONGBLOB, OUT newest BIGINT, OUT last BIGINT
)
BEGIN
  SELECT COALESCE(MAX(COALESCE(f.revision, f.deleted)), 0), COALESCE(MAX(f.last), 0), IF(
    MAX(COALESCE(f.revision, f.deleted) > at_revision), 'null',
    CONCAT('["', COALESCE(MAX(f.last), 0), '",[', COALESCE(GROUP_CONCAT(
      COALESCE(CONCAT('["', HEX(f.value), '","', f.revision, '"]'), 'null') ORDER BY f.place_in_list
    ), ''), ']]')
  ) INTO newest, last, seen
  FROM (
    SELECT t.place_in_list, e.value, e.revision, COALESCE(s.revision, 0) AS last, COALESCE(s.deleted, 0) AS deleted
    FROM {key_list} t
    LEFT JOIN {entries} e ON e.prefix = the_prefix AND e.`key` = UNHEX(t.key_digits)
    LEFT JOIN {stores} s ON s.prefix = the_prefix
  ) f;
END

-- `kept_revision`: all up to it is known to be on the disk. → also up to which revision it is now
-- @statement readKeys
CREATE PROCEDURE IF NOT EXISTS {read_keys}(
  the_prefix VARBINARY(255), list LONGTEXT CHARACTER SET utf8mb4, at_revision BIGINT, kept_revision BIGINT
)
BEGIN
  {variables};
  DECLARE newest, last BIGINT;
  DECLARE seen LONGBLOB;
  {undo};
  {begin};
  CALL {see_keys}(the_prefix, list, at_revision, seen, newest, last);
  IF newest > kept_revision THEN
    CALL {keep}();
    SET kept_revision = last;
  END IF;
  {commit};
  SELECT CONCAT('[null,', seen, ',"', kept_revision, '"]') AS result;
END

-- Locks the rows of what has to be held: nobody can come to hold one of them before the end of the transaction, whatever the clock says
-- by then. → the first that is not held, or null
-- @statement findMissing
CREATE PROCEDURE IF NOT EXISTS {find_missing}(the_prefix VARBINARY(255), holds LONGTEXT CHARACTER SET utf8mb4, OUT missing INT)
BEGIN
  DECLARE moment DOUBLE;
  DECLARE size, done INT DEFAULT 0;
  DECLARE it_used BIGINT;
  DECLARE key_digits VARCHAR(2048) CHARACTER SET latin1;
  DECLARE items CURSOR FOR SELECT t.key_digits FROM {hold_list} t;
  SET size = JSON_LENGTH(holds);
  OPEN items;
  WHILE done < size DO
    FETCH items INTO key_digits;
    SELECT MAX(l.used) INTO it_used FROM {locks} l WHERE l.prefix = the_prefix AND l.`key` = UNHEX(key_digits) FOR UPDATE;
    SET done = done + 1;
  END WHILE;
  CLOSE items;
  SET moment = {now};
  SELECT MIN(t.place_in_list) INTO missing FROM {hold_list} t
  WHERE NOT EXISTS (
    SELECT 1 FROM {locks} l
    WHERE l.prefix = the_prefix AND l.`key` = UNHEX(t.key_digits) AND CONCAT(l.id, '.', l.epoch, '.', l.owner) = t.asked_token
      AND NOT l.revoked AND l.expires_at > moment
  ) AND NOT EXISTS (
    SELECT 1 FROM {claims} c
    WHERE c.prefix = the_prefix AND c.`key` = UNHEX(t.key_digits) AND c.held = TRUE
      AND CONCAT(c.id, '.', c.number, '.', c.owner) = t.asked_token AND NOT c.revoked AND c.expires_at > moment
  );
END

-- holds: key, token, in the order of the keys
-- → committed, revision | not-held, which of the holds | conflict, what is there now. `again`: it may have been carried out already, or
-- may yet be by its first sending.
-- @statement commitKeys
CREATE PROCEDURE IF NOT EXISTS {commit_keys}(
  the_prefix VARBINARY(255), the_id VARBINARY(64), again BOOLEAN, comparisons LONGTEXT CHARACTER SET utf8mb4,
  holds LONGTEXT CHARACTER SET utf8mb4, puts LONGTEXT CHARACTER SET utf8mb4, list LONGTEXT CHARACTER SET utf8mb4,
  wanted LONGTEXT CHARACTER SET utf8mb4
)
BEGIN
  {variables};
  DECLARE start BIGINT DEFAULT {now_in_us};
  DECLARE it_revision, it_deleted, before_revision, newest, last BIGINT;
  DECLARE known, wrong, missing INT;
  DECLARE seen LONGBLOB;
  {undo};
  {begin};
  INSERT INTO {stores} (prefix, revision, deleted) VALUES (the_prefix, start, start) ON DUPLICATE KEY UPDATE revision = {stores}.revision;
  SELECT s.revision, s.deleted INTO it_revision, it_deleted FROM {stores} s WHERE s.prefix = the_prefix;
  SELECT COUNT(*), MAX(c.revision) INTO known, before_revision FROM {commits} c WHERE c.id = the_id;
  IF before_revision IS NOT NULL THEN
    CALL {keep}();
    SET seen = CONCAT('["committed","', before_revision, '"]');
  ELSE
    IF JSON_LENGTH(holds) > 0 THEN CALL {find_missing}(the_prefix, holds, missing); END IF;
    SELECT COUNT(*) INTO wrong
    FROM {comparison_list} t LEFT JOIN {entries} e ON e.prefix = the_prefix AND e.`key` = UNHEX(t.key_digits)
    WHERE COALESCE(e.revision, 0) > t.asked_revision OR (t.asked_equal = 1 AND COALESCE(e.revision, 0) <> t.asked_revision);
    IF missing IS NOT NULL OR known > 0 OR wrong > 0 THEN
      IF again AND known = 0 THEN INSERT INTO {commits} (id, revision, written_at) VALUES (the_id, NULL, {now}); END IF;
      IF missing IS NOT NULL THEN
        SET seen = CONCAT('["not-held",', missing, ']');
      ELSE
        CALL {see_keys}(the_prefix, wanted, NULL, seen, newest, last);
        CALL {keep}();
        SET seen = CONCAT('["conflict",', seen, ']');
      END IF;
    ELSE
      IF JSON_LENGTH(puts) + JSON_LENGTH(list) > 0 THEN
        -- Somebody may have seen what was lost with a server that was killed: its revision is not given again.
        SET it_revision = GREATEST(it_revision + 1, {now_in_us});
        INSERT INTO {entries} (prefix, `key`, value, revision)
        SELECT the_prefix, UNHEX(t.key_digits), UNHEX(t.value_digits), it_revision FROM {put_list} t
        ON DUPLICATE KEY UPDATE value = UNHEX(t.value_digits), revision = it_revision;
        DELETE e FROM {entries} e JOIN {key_list} t ON e.prefix = the_prefix AND e.`key` = UNHEX(t.key_digits);
        IF ROW_COUNT() > 0 THEN SET it_deleted = it_revision; END IF;
        UPDATE {stores} s SET s.revision = it_revision, s.deleted = it_deleted WHERE s.prefix = the_prefix;
        INSERT INTO {commits} (id, revision, written_at) VALUES (the_id, it_revision, {now});
      ELSE
        CALL {keep}();
      END IF;
      SET seen = CONCAT('["committed","', it_revision, '"]');
    END IF;
  END IF;
  {commit};
  SELECT CONCAT('[null,', seen, ']') AS result;
END

-- Whose turn it is to tidy: one process does it for all. → whether it is ours
-- @statement tidy
CREATE PROCEDURE IF NOT EXISTS {tidy}(idle_ms DOUBLE)
BEGIN
  {variables};
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE is_our_turn BOOLEAN DEFAULT FALSE;
  {undo};
  {begin};
  -- It is there, unless somebody has emptied the tables.
  INSERT INTO {meta} (one, version, floor, tidied_at) VALUES (1, 1, moment * 1000, 0) ON DUPLICATE KEY UPDATE one = 1;
  UPDATE {meta} m SET m.tidied_at = moment WHERE m.one = 1 AND m.tidied_at <= moment - idle_ms / 2;
  SET is_our_turn = ROW_COUNT() > 0;
  IF is_our_turn THEN
    DELETE FROM {clients} WHERE alive_until <= moment - idle_ms;
    DELETE FROM {news} WHERE written_at <= moment - idle_ms;
    DELETE FROM {commits} WHERE written_at <= moment - idle_ms;
  END IF;
  {commit};
  SELECT CONCAT('[', moment, ',', IF(is_our_turn, 'true', 'false'), ']') AS result;
END

-- A page of what nobody came near for so long: deleted, if nobody uses it, and the floor raised in the same transaction, so that a row
-- that is made anew goes on from there. What is held or waited for, perhaps by the dead, is settled. → prefix and key to go on from
-- @statement tidyPage
CREATE PROCEDURE IF NOT EXISTS {tidy_page}(
  us VARBINARY(255), idle_ms DOUBLE, after_prefix VARBINARY(255), after_key VARBINARY(512), most INT
)
BEGIN
  {variables};
  DECLARE moment DOUBLE DEFAULT {now};
  DECLARE is_over BOOLEAN DEFAULT FALSE;
  DECLARE its_prefix VARBINARY(255);
  DECLARE its_key VARBINARY(512);
  DECLARE it_used, it_last, highest BIGINT DEFAULT 0;
  DECLARE it_waiting, looked INT DEFAULT 0;
  -- Looked for without locking anything; a row that is locked, or was touched since, is in use.
  DECLARE items CURSOR FOR
    SELECT l.prefix, l.`key` FROM {locks} l
    WHERE ((l.prefix = after_prefix AND l.`key` > after_key) OR l.prefix > after_prefix) AND l.updated_at <= moment - idle_ms
    ORDER BY l.prefix, l.`key` LIMIT most;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_over = TRUE;
  {undo};
  {begin};
  OPEN items;
  each_item: LOOP
    SET is_over = FALSE;
    FETCH items INTO its_prefix, its_key;
    IF is_over THEN LEAVE each_item; END IF;
    SET looked = looked + 1;
    SELECT l.used INTO it_used FROM {locks} l
    WHERE l.prefix = its_prefix AND l.`key` = its_key AND l.updated_at <= moment - idle_ms FOR UPDATE SKIP LOCKED;
    IF is_over THEN ITERATE each_item; END IF;
    CALL {settle}(its_prefix, its_key, NULL, us, moment);
    SELECT l.used, l.waiting, l.last INTO it_used, it_waiting, it_last
    FROM {locks} l WHERE l.prefix = its_prefix AND l.`key` = its_key;
    IF it_used = 0 AND it_waiting = 0 THEN
      DELETE FROM {locks} WHERE prefix = its_prefix AND `key` = its_key;
      SET highest = GREATEST(highest, it_last);
    END IF;
  END LOOP;
  CLOSE items;
  UPDATE {meta} m SET m.floor = highest WHERE m.one = 1 AND m.floor < highest;
  {commit};
  SELECT CONCAT(
    '[', moment, ',', IF(looked = most, CONCAT('["', HEX(its_prefix), '","', HEX(its_key), '"]'), 'null'), ']'
  ) AS result;
END
