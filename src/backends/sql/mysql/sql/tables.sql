-- The layout, version 1. `{name}` is a table of ours, or a procedure of this version, wherever they were put. For MariaDB and MySQL.
--
-- Times are milliseconds of the database's clock. Keys, ids, owners, types and metadata are bytes: text is compared by a collation,
-- and even those that are called binary take 'a' and 'a ' for the same. A row of `locks` is the only point at which a key is
-- serialised: whoever changes anything about a key has locked its row first, and who has several keys locks them in their order.

-- One row: what is true of all of it.
--   floor      no number up to this one is drawn for a new row: raised when rows are deleted, so that epochs only grow. It begins
--              with the time of day in microseconds, so that it is higher than all that were drawn in tables that are gone
--   tidied_at  when somebody last looked for idle rows
-- @statement meta
CREATE TABLE IF NOT EXISTS {meta} (
  one TINYINT NOT NULL PRIMARY KEY,
  version INT NOT NULL,
  floor BIGINT NOT NULL,
  tidied_at DOUBLE NOT NULL
) ENGINE = InnoDB

-- @statement metaRow
INSERT INTO {meta} (one, version, floor, tidied_at)
VALUES (1, 1, {now_in_us}, 0)
ON DUPLICATE KEY UPDATE one = 1

-- One row per resource, in use or used less than a minute ago. It is made by whoever comes first, and stays: to delete rows
-- that others are about to lock is what makes InnoDB see deadlocks.
--   slots, used, waiting  the limit, how much of it is taken, and how many wait
--   last                  the last number drawn, for a ticket or an epoch
--   id … metadata         the holder, if the limit is 1 and it is taken; others are in `claims`. They stay when it lets go: a row that
--                         keeps its length is changed in its place
--   expires_at            when the holder expires; of several, none does before this
-- @statement locks
CREATE TABLE IF NOT EXISTS {locks} (
  prefix VARBINARY(255) NOT NULL,
  `key` VARBINARY(512) NOT NULL,
  slots BIGINT NOT NULL,
  used BIGINT NOT NULL,
  waiting INT NOT NULL,
  last BIGINT NOT NULL,
  id VARBINARY(64),
  owner VARBINARY(255),
  epoch BIGINT,
  revoked BOOLEAN NOT NULL DEFAULT FALSE,
  type VARBINARY(4096),
  metadata VARBINARY(4096),
  granted_at DOUBLE,
  expires_at DOUBLE NOT NULL,
  created_at DOUBLE NOT NULL,
  updated_at DOUBLE NOT NULL,
  PRIMARY KEY (prefix, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- Claims that wait, and those that hold where the limit is above 1.
--   number  its ticket while it waits, its epoch once it holds
-- @statement claims
CREATE TABLE IF NOT EXISTS {claims} (
  prefix VARBINARY(255) NOT NULL,
  `key` VARBINARY(512) NOT NULL,
  held BOOLEAN NOT NULL,
  number BIGINT NOT NULL,
  id VARBINARY(64) NOT NULL,
  owner VARBINARY(255) NOT NULL,
  take BIGINT NOT NULL,
  ttl_ms DOUBLE NOT NULL,
  revoked BOOLEAN NOT NULL DEFAULT FALSE,
  type VARBINARY(4096),
  metadata VARBINARY(4096),
  granted_at DOUBLE,
  expires_at DOUBLE,
  PRIMARY KEY (prefix, `key`, held, number),
  KEY by_id (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- Processes that wait (an owner is one manager in one): one row, however many claims.
--   alive_until  when it counts as gone, unless it is heard of before
-- @statement clients
CREATE TABLE IF NOT EXISTS {clients} (
  owner VARBINARY(255) NOT NULL PRIMARY KEY,
  alive_until DOUBLE NOT NULL
) ENGINE = InnoDB

-- What a process should know, until it asks: a database of this kind tells nothing by itself.
-- @statement news
CREATE TABLE IF NOT EXISTS {news} (
  number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  owner VARBINARY(255) NOT NULL,
  news VARBINARY(255) NOT NULL,
  written_at DOUBLE NOT NULL,
  KEY by_owner (owner)
) ENGINE = InnoDB

-- What transactions work on. One row per prefix, which every commit locks first: so commits come one
-- after the other, and their numbers in the order in which they can be seen. One that rests on locks takes their rows after it;
-- nobody takes it after them.
--   revision  of the last commit. It begins with the time of day in microseconds, so that no number comes twice if tables are gone
--   deleted   of the last commit that deleted something: what is not there now may have been there before it
-- @statement stores
CREATE TABLE IF NOT EXISTS {stores} (
  prefix VARBINARY(255) NOT NULL PRIMARY KEY,
  revision BIGINT NOT NULL,
  deleted BIGINT NOT NULL
) ENGINE = InnoDB

--   revision  of the commit that wrote it
-- @statement entries
CREATE TABLE IF NOT EXISTS {entries} (
  prefix VARBINARY(255) NOT NULL,
  `key` VARBINARY(512) NOT NULL,
  value LONGBLOB NOT NULL,
  revision BIGINT NOT NULL,
  PRIMARY KEY (prefix, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- Commits of the last minute, for those whose answer was lost.
--   revision  null if it was refused when it was sent again: then it must not be carried out if its first sending comes after all
-- @statement commits
CREATE TABLE IF NOT EXISTS {commits} (
  id VARBINARY(64) NOT NULL PRIMARY KEY,
  revision BIGINT,
  written_at DOUBLE NOT NULL
) ENGINE = InnoDB
