-- The layout, version 1. `{name}` is a table of ours, or a function of this version, wherever they were put.
--
-- Times are milliseconds of the database's clock. Keys, types and metadata are bytes: text refuses a NUL, and is compared by
-- somebody's collation. A row of `locks` is the only point at which a key is serialised: whoever changes anything about a key
-- has locked its row first, and who has several keys locks them in their order.

-- What belongs together is made anew together, if somebody has dropped a part of it: epochs would begin again with an old floor,
-- and claims be left of rows that are gone. What was held is lost.
DO $$ BEGIN
  IF num_nulls(to_regclass('{meta}'), to_regclass('{locks}'), to_regclass('{claims}')) IN (1, 2) THEN
    DROP TABLE IF EXISTS {meta}, {locks}, {claims} CASCADE;
  END IF;
END $$;

-- One row: what is true of all of it.
--   floor      no number up to this one is drawn for a new row: raised when rows are deleted, so that epochs only grow. It begins
--              with the time of day in microseconds, so that it is higher than all that were drawn in tables that are gone
--   tidied_at  when somebody last looked for idle rows
CREATE TABLE IF NOT EXISTS {meta} (
  one integer PRIMARY KEY CHECK (one = 1),
  version integer NOT NULL,
  floor bigint NOT NULL,
  tidied_at float8 NOT NULL
);
INSERT INTO {meta} (one, version, floor, tidied_at)
VALUES (1, 1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint, 0)
ON CONFLICT (one) DO NOTHING;

-- One row per resource, in use or used less than a minute ago.
--   slots, used, waiting  the limit, how much of it is taken, and how many wait
--   last                  the last number drawn, for a ticket or an epoch
--   id … metadata         the holder, if the limit is 1; others are in `claims`
--   expires_at            when the holder expires; of several, none does before this
-- No other index, and room on each page: so no update has to touch an index.
CREATE TABLE IF NOT EXISTS {locks} (
  prefix bytea NOT NULL,
  key bytea NOT NULL,
  slots bigint NOT NULL,
  used bigint NOT NULL,
  waiting integer NOT NULL,
  last bigint NOT NULL,
  id text,
  owner text,
  epoch bigint,
  revoked boolean NOT NULL DEFAULT false,
  type bytea,
  metadata bytea,
  granted_at float8,
  expires_at float8 NOT NULL,
  created_at float8 NOT NULL,
  updated_at float8 NOT NULL,
  PRIMARY KEY (prefix, key)
) WITH (fillfactor = 40);

-- Claims that wait, and those that hold where the limit is above 1.
--   number  its ticket while it waits, its epoch once it holds
CREATE TABLE IF NOT EXISTS {claims} (
  prefix bytea NOT NULL,
  key bytea NOT NULL,
  held boolean NOT NULL,
  number bigint NOT NULL,
  id text NOT NULL,
  owner text NOT NULL,
  take bigint NOT NULL,
  ttl_ms float8 NOT NULL,
  revoked boolean NOT NULL DEFAULT false,
  type bytea,
  metadata bytea,
  granted_at float8,
  expires_at float8,
  PRIMARY KEY (prefix, key, held, number)
);
CREATE INDEX IF NOT EXISTS {claims_by_id} ON {claims} (id);

-- Processes that wait (an owner is one manager in one): one row, however many claims.
--   alive_until  when it counts as gone, unless it is heard of before
--   listens      whether it hears of a NOTIFY; if not, what it should know is left in `news`
CREATE TABLE IF NOT EXISTS {clients} (
  owner text PRIMARY KEY,
  alive_until float8 NOT NULL,
  listens boolean NOT NULL
) WITH (fillfactor = 40);

CREATE TABLE IF NOT EXISTS {news} (
  owner text NOT NULL,
  number bigint GENERATED ALWAYS AS IDENTITY,
  news text NOT NULL,
  written_at float8 NOT NULL,
  PRIMARY KEY (owner, number)
);

-- What transactions work on. One row per prefix, which every commit locks first: so commits come one
-- after the other, and their numbers in the order in which they can be seen (as those of a sequence would not). One that
-- rests on locks takes their rows after it; nobody takes it after them.
--   revision  of the last commit. It begins with the time of day in microseconds, so that no number comes twice if tables are gone
--   deleted   of the last commit that deleted something: what is not there now may have been there before it
CREATE TABLE IF NOT EXISTS {stores} (
  prefix bytea PRIMARY KEY,
  revision bigint NOT NULL,
  deleted bigint NOT NULL
) WITH (fillfactor = 40);

-- revision  of the commit that wrote it
CREATE TABLE IF NOT EXISTS {entries} (
  prefix bytea NOT NULL,
  key bytea NOT NULL,
  value bytea NOT NULL,
  revision bigint NOT NULL,
  PRIMARY KEY (prefix, key)
);

-- Commits of the last minute, for those whose answer was lost.
--   revision  null if it was refused when it was sent again: then it must not be carried out if its first sending comes after all
CREATE TABLE IF NOT EXISTS {commits} (
  id text PRIMARY KEY,
  revision bigint,
  written_at float8 NOT NULL
);
