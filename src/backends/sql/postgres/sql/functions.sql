-- The steps: each is one call, and one transaction. They are functions because a plain statement sees the rows as they were when it
-- began: one that had to wait for a row would read an old queue after that, and leave somebody in it for ever.
--
-- Lists come as JSON, sorted by key. What is told to other processes is told at the commit. A commit is waited for on the disk
-- if it says that somebody holds, goes on holding or waits; one that only frees may be lost in a crash, and is then made up
-- for by the TTL.

CREATE OR REPLACE FUNCTION {now}() RETURNS float8 LANGUAGE sql VOLATILE AS
$$ SELECT date_part('epoch', clock_timestamp()) * 1000 $$;

-- The number below which none is drawn for a new row. Read after the row was made: whoever deleted the one before has raised it.
-- Where a transaction sees old rows to its end, that is not so; there the lock fails if somebody has.
CREATE OR REPLACE FUNCTION {floor}() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  lowest bigint;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT floor INTO lowest FROM {meta};
  ELSE
    SELECT floor INTO lowest FROM {meta} FOR SHARE;
  END IF;
  -- Somebody has emptied the tables: as if they were new.
  RETURN coalesce(lowest, ({now}() * 1000)::bigint);
END $$;

-- Whether the commit has to be on the disk.
CREATE OR REPLACE FUNCTION {commit}(durably boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF NOT durably THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END $$;

-- To the process itself: by NOTIFY, or left for it to find. Whoever listens on the channel reads along, so of the claim's id it
-- says only as much as its owner needs to know which one it is.
CREATE OR REPLACE FUNCTION {tell}(whom text, what json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM {clients} WHERE owner = whom AND NOT listens;
  IF FOUND THEN
    INSERT INTO {news} (owner, news, written_at) VALUES (whom, what::text, {now}());
  ELSE
    PERFORM pg_notify('holdfast_' || md5(convert_to(whom, 'UTF8')), what::text);
  END IF;
END $$;

CREATE OR REPLACE FUNCTION {find}(the_prefix bytea, the_key bytea) RETURNS {locks} LANGUAGE sql VOLATILE AS
$$ SELECT * FROM {locks} WHERE prefix = the_prefix AND key = the_key FOR NO KEY UPDATE $$;

-- Finds a resource, or makes it.
CREATE OR REPLACE FUNCTION {open}(the_prefix bytea, the_key bytea, moment float8) RETURNS {locks} LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  it {locks};
BEGIN
  LOOP
    it := {find}(the_prefix, the_key);
    IF it.key IS NOT NULL THEN RETURN it; END IF;
    INSERT INTO {locks} (prefix, key, slots, used, waiting, last, expires_at, created_at, updated_at)
    VALUES (the_prefix, the_key, 1, 0, 0, 0, 0, moment, moment)
    ON CONFLICT (prefix, key) DO NOTHING;
    IF FOUND THEN
      UPDATE {locks} SET last = {floor}() WHERE prefix = the_prefix AND key = the_key RETURNING * INTO it;
      RETURN it;
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {save}(it {locks}, moment float8) RETURNS void LANGUAGE sql VOLATILE AS $$
  UPDATE {locks} SET
    slots = it.slots, used = it.used, waiting = it.waiting, last = it.last, id = it.id, owner = it.owner, epoch = it.epoch,
    revoked = it.revoked, type = it.type, metadata = it.metadata, granted_at = it.granted_at, expires_at = it.expires_at,
    updated_at = moment
  WHERE prefix = it.prefix AND key = it.key
$$;

-- Ends the hold with this epoch; who is next comes in when the resource is settled.
CREATE OR REPLACE FUNCTION {end}(it {locks}, the_epoch bigint) RETURNS {locks} LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  taken bigint := 1;
BEGIN
  IF it.slots = 1 THEN
    it.id := NULL;
    it.owner := NULL;
    it.epoch := NULL;
    it.revoked := false;
    it.type := NULL;
    it.metadata := NULL;
    it.granted_at := NULL;
    it.expires_at := 0;
  ELSE
    DELETE FROM {claims} WHERE prefix = it.prefix AND key = it.key AND held AND number = the_epoch RETURNING take INTO taken;
  END IF;
  it.used := it.used - taken;
  RETURN it;
END $$;

CREATE OR REPLACE FUNCTION {grant}(
  it {locks}, the_id text, the_owner text, taken bigint, ttl float8, the_type bytea, the_metadata bytea, moment float8, until float8
) RETURNS {locks} LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  it.last := it.last + 1;
  IF it.slots = 1 THEN
    it.id := the_id;
    it.owner := the_owner;
    it.epoch := it.last;
    it.revoked := false;
    it.type := the_type;
    it.metadata := the_metadata;
    it.granted_at := moment;
    it.expires_at := until;
  ELSE
    INSERT INTO {claims} (prefix, key, held, number, id, owner, take, ttl_ms, type, metadata, granted_at, expires_at)
    VALUES (it.prefix, it.key, true, it.last, the_id, the_owner, taken, ttl, the_type, the_metadata, moment, until);
    IF it.used = 0 OR until < it.expires_at THEN it.expires_at := until; END IF;
  END IF;
  it.used := it.used + taken;
  RETURN it;
END $$;

-- Ends what has expired and lets in whoever is next: the first step of everything. `asker` (a claim) hears of it by its answer.
-- The process of a waiter may have died since it was last heard of. So whoever is let in has the resource for no longer than
-- its process counts as there, until it asks again or renews.
CREATE OR REPLACE FUNCTION {settle}(it {locks}, moment float8, asker text, us text) RETURNS {locks} LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  head {claims};
  after bigint := -1;
  alive_until float8;
  until float8;
BEGIN
  IF it.used > 0 AND it.expires_at <= moment THEN
    IF it.slots = 1 THEN
      it := {end}(it, it.epoch);
    ELSE
      WITH gone AS (
        DELETE FROM {claims} c WHERE c.prefix = it.prefix AND c.key = it.key AND c.held AND c.expires_at <= moment RETURNING c.take
      )
      SELECT it.used - coalesce(sum(gone.take), 0) INTO it.used FROM gone;
      SELECT coalesce(min(c.expires_at), 0) INTO it.expires_at FROM {claims} c WHERE c.prefix = it.prefix AND c.key = it.key AND c.held;
    END IF;
  END IF;
  WHILE it.waiting > 0 LOOP
    -- From the last one on: those that were deleted are still passed by, so each would cost as much as all before it.
    SELECT * INTO STRICT head FROM {claims} c
    WHERE c.prefix = it.prefix AND c.key = it.key AND NOT c.held AND c.number > after ORDER BY c.number LIMIT 1;
    after := head.number;
    IF head.owner = us THEN
      alive_until := moment + {gone_ms};
    ELSE
      SELECT c.alive_until INTO alive_until FROM {clients} c WHERE c.owner = head.owner;
    END IF;
    IF alive_until > moment AND it.used + head.take > it.slots THEN RETURN it; END IF;
    DELETE FROM {claims} c WHERE c.prefix = it.prefix AND c.key = it.key AND NOT c.held AND c.number = head.number;
    it.waiting := it.waiting - 1;
    -- Nobody has heard of it for long: it finds its place again when it comes back.
    CONTINUE WHEN alive_until IS NULL OR alive_until <= moment;
    until := moment + head.ttl_ms;
    IF head.id IS DISTINCT FROM asker THEN until := least(until, alive_until); END IF;
    it := {grant}(it, head.id, head.owner, head.take, head.ttl_ms, head.type, head.metadata, moment, until);
    IF head.id IS DISTINCT FROM asker THEN
      PERFORM {tell}(head.owner, json_build_array(
        'granted', left(head.id, {name_length}), it.last::text, moment, until - moment, it.waiting));
    END IF;
  END LOOP;
  RETURN it;
END $$;

CREATE OR REPLACE FUNCTION {holders}(it {locks}) RETURNS SETOF {claims} LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF it.slots > 1 THEN
    RETURN QUERY SELECT * FROM {claims} c WHERE c.prefix = it.prefix AND c.key = it.key AND c.held ORDER BY c.number;
  ELSIF it.id IS NOT NULL THEN
    RETURN QUERY SELECT it.prefix, it.key, true, it.epoch, it.id, it.owner, 1::bigint, NULL::float8, it.revoked, it.type, it.metadata,
      it.granted_at, it.expires_at;
  END IF;
END $$;

-- Whoever hands over in memory has to know that others wait.
CREATE OR REPLACE FUNCTION {hint}(it {locks}) RETURNS void LANGUAGE sql VOLATILE AS $$
  SELECT {tell}(h.owner, json_build_array('contended', left(h.id, {name_length})))
  FROM {holders}(it) h WHERE NOT h.revoked
$$;

CREATE OR REPLACE FUNCTION {describe}(h {claims}, moment float8) RETURNS json LANGUAGE sql VOLATILE AS $$
  SELECT json_build_array(h.owner, h.number::text, moment - h.granted_at, h.expires_at - moment,
    encode(h.type, 'hex'), encode(h.metadata, 'hex'))
$$;

-- Of several holders, the one that will be free first.
CREATE OR REPLACE FUNCTION {blocker}(it {locks}, moment float8) RETURNS json LANGUAGE sql VOLATILE AS
$$ SELECT {describe}(h, moment) FROM {holders}(it) h ORDER BY h.expires_at, h.number LIMIT 1 $$;

-- list: key, id, take, slots, ttl, type, metadata, place
-- → held, epoch, waiting, whether it was passed over | queued, place, ahead, waiting, holder, whether it was passed over
--   | refused, ahead, waiting, holder | revoked, epoch | limit, slots
CREATE OR REPLACE FUNCTION {claim}(the_prefix bytea, us text, list json, queues boolean, hears boolean) RETURNS json
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  began float8 := {now}();
  moment float8;
  c record;
  it {locks};
  was {locks};
  own {claims};
  drawn bigint;
  ticket bigint;
  before integer;
  state json;
  states json[] := '{}';
  waits boolean := false;
  durably boolean := false;
BEGIN
  FOR c IN
    SELECT decode(t.key, 'hex') AS key, t.id, t.take, t.slots, t.ttl, decode(t.type, 'hex') AS type,
      decode(t.metadata, 'hex') AS metadata, t.place
    FROM json_to_recordset(list) AS t (
      key text, id text, take bigint, slots bigint, ttl float8, type text, metadata text, place bigint
    )
  LOOP
    moment := {now}();
    -- What most are: a lock that is free, or has expired, and for which nobody waits.
    IF c.slots = 1 AND c.place IS NULL THEN
      INSERT INTO {locks} AS l (
        prefix, key, slots, used, waiting, last, epoch, id, owner, type, metadata, granted_at, expires_at, created_at, updated_at
      ) VALUES (the_prefix, c.key, 1, 1, 0, 0, 0, c.id, us, c.type, c.metadata, moment, moment + c.ttl, moment, moment)
      ON CONFLICT (prefix, key) DO UPDATE SET
        slots = 1, used = 1, last = l.last + 1, epoch = l.last + 1, revoked = false, id = excluded.id, owner = excluded.owner,
        type = excluded.type, metadata = excluded.metadata, granted_at = excluded.granted_at, expires_at = excluded.expires_at,
        updated_at = excluded.updated_at
      WHERE l.waiting = 0 AND (l.used = 0 OR (l.slots = 1 AND l.expires_at <= excluded.granted_at))
      RETURNING l.epoch INTO drawn;
      IF FOUND THEN
        IF drawn = 0 THEN
          drawn := {floor}() + 1;
          UPDATE {locks} SET last = drawn, epoch = drawn WHERE prefix = the_prefix AND key = c.key;
        END IF;
        durably := true;
        states := states || json_build_array('held', drawn::text, 0, false);
        CONTINUE;
      END IF;
    END IF;
    it := {open}(the_prefix, c.key, moment);
    was := it;
    moment := {now}();
    it := {settle}(it, moment, c.id, us);
    <<answer>> BEGIN
      IF it.used = 0 AND it.waiting = 0 THEN it.slots := c.slots; END IF;
      IF it.slots <> c.slots THEN
        state := json_build_array('limit', it.slots);
        EXIT answer;
      END IF;
      SELECT * INTO own FROM {holders}(it) h WHERE h.id = c.id;
      IF FOUND AND own.revoked THEN
        state := json_build_array('revoked', own.number::text);
        EXIT answer;
      ELSIF FOUND THEN
        IF it.slots = 1 THEN
          it.expires_at := greatest(it.expires_at, moment + c.ttl);
        ELSE
          UPDATE {claims} h SET expires_at = greatest(h.expires_at, moment + c.ttl)
          WHERE h.prefix = the_prefix AND h.key = c.key AND h.held AND h.number = own.number;
        END IF;
        durably := true;
        state := json_build_array('held', own.number::text, it.waiting, false);
        EXIT answer;
      END IF;
      SELECT * INTO own FROM {claims} w WHERE it.waiting > 0 AND w.id = c.id AND w.prefix = the_prefix AND w.key = c.key AND NOT w.held;
      IF FOUND AND NOT queues THEN
        DELETE FROM {claims} w WHERE w.prefix = the_prefix AND w.key = c.key AND NOT w.held AND w.number = own.number;
        it.waiting := it.waiting - 1;
        it := {settle}(it, moment, NULL, us);
        state := json_build_array('refused', it.waiting, it.waiting, {blocker}(it, moment));
        EXIT answer;
      ELSIF FOUND THEN
        waits := true;
        SELECT count(*) INTO before FROM {claims} w
        WHERE w.prefix = the_prefix AND w.key = c.key AND NOT w.held AND w.number < own.number;
        IF before = 0 THEN PERFORM {hint}(it); END IF;
        state := json_build_array('queued', own.number::text, before, it.waiting - 1, {blocker}(it, moment), false);
        EXIT answer;
      END IF;
      -- It is new, or was passed over: then it has its place again, if it can be that.
      ticket := NULL;
      before := it.waiting;
      IF c.place <= it.last AND it.waiting = 0 THEN
        ticket := c.place;
      ELSIF c.place <= it.last THEN
        PERFORM FROM {claims} w WHERE w.prefix = the_prefix AND w.key = c.key AND NOT w.held AND w.number = c.place;
        IF NOT FOUND THEN
          ticket := c.place;
          SELECT count(*) INTO before FROM {claims} w
          WHERE w.prefix = the_prefix AND w.key = c.key AND NOT w.held AND w.number < ticket;
        END IF;
      END IF;
      IF before = 0 AND it.used + c.take <= it.slots THEN
        it := {grant}(it, c.id, us, c.take, c.ttl, c.type, c.metadata, moment, moment + c.ttl);
        state := json_build_array('held', it.last::text, it.waiting, c.place IS NOT NULL);
        EXIT answer;
      ELSIF NOT queues THEN
        state := json_build_array('refused', it.waiting, it.waiting, {blocker}(it, moment));
        EXIT answer;
      END IF;
      IF ticket IS NULL THEN
        it.last := it.last + 1;
        ticket := it.last;
      END IF;
      INSERT INTO {claims} (prefix, key, held, number, id, owner, take, ttl_ms, type, metadata)
      VALUES (the_prefix, c.key, false, ticket, c.id, us, c.take, c.ttl, c.type, c.metadata);
      it.waiting := it.waiting + 1;
      waits := true;
      IF before = 0 THEN PERFORM {hint}(it); END IF;
      state := json_build_array('queued', ticket::text, before, it.waiting - 1, {blocker}(it, moment), c.place IS NOT NULL);
    END answer;
    states := states || state;
    IF it IS DISTINCT FROM was THEN
      PERFORM {save}(it, moment);
      durably := true;
    END IF;
  END LOOP;
  IF waits THEN
    INSERT INTO {clients} AS p (owner, alive_until, listens) VALUES (us, {now}() + {gone_ms}, hears)
    ON CONFLICT (owner) DO UPDATE SET alive_until = excluded.alive_until, listens = excluded.listens
    WHERE p.alive_until < excluded.alive_until - 100 OR p.listens <> excluded.listens;
  END IF;
  PERFORM {commit}(durably);
  RETURN json_build_array(began, array_to_json(states));
END $$;

-- list: key, id, ttl, exact until (of the database's clock; later it only lengthens), given (the token of a claim that was given away)
-- → held, waiting | lost | revoked
CREATE OR REPLACE FUNCTION {renew}(the_prefix bytea, us text, list json) RETURNS json
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  began float8 := {now}();
  moment float8;
  c record;
  it {locks};
  was {locks};
  own {claims};
  until float8;
  behind integer;
  state json;
  states json[] := '{}';
BEGIN
  FOR c IN
    SELECT decode(t.key, 'hex') AS key, t.id, t.ttl, t.exact_until, t.given
    FROM json_to_recordset(list) AS t (key text, id text, ttl float8, exact_until float8, given text)
  LOOP
    moment := {now}();
    IF c.exact_until IS NULL AND c.given IS NULL THEN
      UPDATE {locks} SET expires_at = greatest(expires_at, moment + c.ttl), updated_at = moment
      WHERE prefix = the_prefix AND key = c.key AND id = c.id AND owner = us AND NOT revoked AND expires_at > moment
      RETURNING waiting INTO behind;
      IF FOUND THEN
        states := states || json_build_array('held', behind);
        CONTINUE;
      END IF;
    END IF;
    state := json_build_array('lost');
    it := {find}(the_prefix, c.key);
    IF it.key IS NOT NULL THEN
      was := it;
      moment := {now}();
      it := {settle}(it, moment, c.id, us);
      SELECT * INTO own FROM {holders}(it) h
      WHERE (h.id = c.id AND h.owner = us) OR h.id || '.' || h.number || '.' || h.owner = c.given
      ORDER BY h.id = c.id DESC LIMIT 1;
      IF FOUND AND own.revoked THEN
        state := json_build_array('revoked');
      ELSIF FOUND THEN
        until := moment + c.ttl;
        IF c.exact_until IS NULL OR moment > c.exact_until THEN until := greatest(until, own.expires_at); END IF;
        IF it.slots = 1 THEN
          it.id := c.id;
          it.owner := us;
          it.expires_at := until;
        ELSE
          UPDATE {claims} h SET id = c.id, owner = us, expires_at = until
          WHERE h.prefix = the_prefix AND h.key = c.key AND h.held AND h.number = own.number;
          it.expires_at := least(it.expires_at, until);
        END IF;
        state := json_build_array('held', it.waiting);
      END IF;
      IF it IS DISTINCT FROM was THEN PERFORM {save}(it, moment); END IF;
    END IF;
    states := states || state;
  END LOOP;
  PERFORM {commit}(true);
  RETURN json_build_array(began, array_to_json(states));
END $$;

-- list: key, id → released | not-held
CREATE OR REPLACE FUNCTION {release}(the_prefix bytea, us text, list json) RETURNS json
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  began float8 := {now}();
  moment float8;
  c record;
  it {locks};
  was {locks};
  own {claims};
  state text;
  states text[] := '{}';
  durably boolean := false;
BEGIN
  FOR c IN SELECT decode(t.key, 'hex') AS key, t.id FROM json_to_recordset(list) AS t (key text, id text) LOOP
    moment := {now}();
    UPDATE {locks} SET
      used = 0, id = NULL, owner = NULL, epoch = NULL, type = NULL, metadata = NULL, granted_at = NULL, expires_at = 0,
      updated_at = moment
    WHERE prefix = the_prefix AND key = c.key AND id = c.id AND waiting = 0 AND expires_at > moment;
    IF FOUND THEN
      states := states || 'released'::text;
      CONTINUE;
    END IF;
    state := 'not-held';
    it := {find}(the_prefix, c.key);
    IF it.key IS NOT NULL THEN
      was := it;
      moment := {now}();
      it := {settle}(it, moment, NULL, us);
      SELECT * INTO own FROM {holders}(it) h WHERE h.id = c.id;
      IF FOUND THEN
        state := 'released';
        it := {settle}({end}(it, own.number), moment, NULL, us);
      ELSIF it.waiting > 0 THEN
        DELETE FROM {claims} w WHERE w.id = c.id AND w.prefix = the_prefix AND w.key = c.key AND NOT w.held;
        IF FOUND THEN
          it.waiting := it.waiting - 1;
          -- It may have been too big for what is free, and kept smaller ones from it.
          it := {settle}(it, moment, NULL, us);
        END IF;
      END IF;
      IF it IS DISTINCT FROM was THEN
        PERFORM {save}(it, moment);
        durably := true;
      END IF;
    END IF;
    states := states || state;
  END LOOP;
  PERFORM {commit}(durably);
  RETURN json_build_array(began, array_to_json(states));
END $$;

-- → free | told | freed
CREATE OR REPLACE FUNCTION {revoke}(the_prefix bytea, us text, the_key bytea, at_once boolean) RETURNS json
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  moment float8;
  it {locks};
  was {locks};
  h {claims};
  result text := 'free';
BEGIN
  it := {find}(the_prefix, the_key);
  moment := {now}();
  IF it.key IS NOT NULL THEN
    was := it;
    it := {settle}(it, moment, NULL, us);
    FOR h IN SELECT * FROM {holders}(it) LOOP
      -- Also if it was told before: whoever asks twice has seen no effect.
      PERFORM {tell}(h.owner, json_build_array('revoked', left(h.id, {name_length})));
      IF at_once THEN
        result := 'freed';
        it := {end}(it, h.number);
      ELSE
        result := 'told';
        IF it.slots = 1 THEN
          it.revoked := true;
        ELSE
          UPDATE {claims} c SET revoked = true WHERE c.prefix = the_prefix AND c.key = the_key AND c.held AND c.number = h.number;
        END IF;
      END IF;
    END LOOP;
    IF at_once THEN it := {settle}(it, moment, NULL, us); END IF;
    IF it IS DISTINCT FROM was THEN PERFORM {save}(it, moment); END IF;
  END IF;
  PERFORM {commit}(true);
  RETURN json_build_array(moment, result);
END $$;

-- A page of what is in use, with keys that begin with some text, and the last key that was looked at.
-- → last, [key, slots, [holder, take] …, [owner, take] …] …
CREATE OR REPLACE FUNCTION {inspect}(the_prefix bytea, beginning bytea, after bytea, most integer) RETURNS json
LANGUAGE sql VOLATILE AS $$
  WITH page AS MATERIALIZED (
    SELECT l.* FROM {locks} l
    WHERE l.prefix = the_prefix AND l.key > after AND l.key >= beginning AND substring(l.key for length(beginning)) = beginning
    ORDER BY l.key LIMIT most
  ), clock AS MATERIALIZED (
    SELECT {now}() AS moment
  ), seen AS (
    SELECT l.key, l.slots, (
      SELECT coalesce(json_agg(json_build_array({describe}(h, clock.moment), h.take) ORDER BY h.number), '[]')
      FROM {holders}(l) h WHERE h.expires_at > clock.moment
    ) AS holders, (
      SELECT coalesce(json_agg(json_build_array(w.owner, w.take) ORDER BY w.number), '[]')
      FROM {claims} w WHERE l.waiting > 0 AND w.prefix = l.prefix AND w.key = l.key AND NOT w.held
    ) AS waiters
    FROM page l, clock
  )
  SELECT json_build_array(
    (SELECT moment FROM clock),
    json_build_array(
      (SELECT encode(key, 'hex') FROM page ORDER BY page.key OFFSET most - 1),
      coalesce(json_agg(json_build_array(encode(key, 'hex'), slots, holders, waiters) ORDER BY key)
        FILTER (WHERE json_array_length(holders) > 0 OR json_array_length(waiters) > 0), '[]')
    )
  ) FROM seen
$$;

-- What was left for a process that cannot listen.
CREATE OR REPLACE FUNCTION {read_news}(us text) RETURNS json LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  found_news json;
BEGIN
  WITH told AS (DELETE FROM {news} WHERE owner = us RETURNING number, news)
  SELECT coalesce(json_agg(news ORDER BY number), '[]') INTO found_news FROM told;
  PERFORM {commit}(false);
  RETURN json_build_array({now}(), found_news);
END $$;

-- What it waits for is passed over from now on; what it holds stays until it expires.
CREATE OR REPLACE FUNCTION {leave}(us text) RETURNS json LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM {clients} WHERE owner = us;
  DELETE FROM {news} WHERE owner = us;
  PERFORM {commit}(false);
  RETURN json_build_array({now}(), NULL);
END $$;

-- What is there of some keys, in one statement and so at one moment: the revision, and value and revision of each. If it is to be as of an
-- earlier revision: null, if one of them has changed since, or may have been deleted.
CREATE OR REPLACE FUNCTION {read_keys}(the_prefix bytea, list json, at_revision bigint) RETURNS json LANGUAGE sql STABLE AS $$
  WITH found AS (
    SELECT t.place, e.value, e.revision
    FROM (
      SELECT decode(i.item ->> 'key', 'hex') AS key, i.place FROM json_array_elements(list) WITH ORDINALITY AS i (item, place)
    ) t LEFT JOIN {entries} e ON e.prefix = the_prefix AND e.key = t.key
  ), it AS (
    SELECT coalesce(max(s.revision), 0) AS revision, coalesce(max(s.deleted), 0) AS deleted FROM {stores} s WHERE s.prefix = the_prefix
  )
  SELECT json_build_array(NULL, CASE
    WHEN EXISTS (SELECT FROM found f WHERE coalesce(f.revision, it.deleted) > at_revision) THEN NULL
    ELSE json_build_array(it.revision::text, (
      SELECT coalesce(json_agg(
        CASE WHEN f.revision IS NOT NULL THEN json_build_array(encode(f.value, 'hex'), f.revision::text) END ORDER BY f.place
      ), '[]') FROM found f
    ))
  END) FROM it
$$;

-- holds: key, token, in the order of the keys
-- → committed, revision | not-held, which of the holds | conflict, what is there now. `again`: it may have been carried out already, or
-- may yet be by its first sending.
CREATE OR REPLACE FUNCTION {commit_keys}(
  the_prefix bytea, the_id text, again boolean, comparisons json, holds json, puts json, deletes json, reads json
) RETURNS json LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  it {stores};
  before {commits};
  start bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
  moment float8;
  missing integer;
BEGIN
  LOOP
    SELECT * INTO it FROM {stores} s WHERE s.prefix = the_prefix FOR NO KEY UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO {stores} (prefix, revision, deleted) VALUES (the_prefix, start, start) ON CONFLICT (prefix) DO NOTHING;
  END LOOP;
  SELECT * INTO before FROM {commits} c WHERE c.id = the_id;
  IF before.revision IS NOT NULL THEN
    RETURN json_build_array(NULL, json_build_array('committed', before.revision::text));
  END IF;
  IF json_array_length(holds) > 0 THEN
    -- Their rows stay locked: nobody can come to hold one of them before this is committed, whatever the clock says by then.
    PERFORM {find}(the_prefix, decode(h.key, 'hex')) FROM json_to_recordset(holds) AS h (key text);
    moment := {now}();
    SELECT min(h.place) INTO missing
    FROM json_array_elements(holds) WITH ORDINALITY AS h (item, place)
    WHERE NOT EXISTS (
      SELECT FROM {locks} l, {holders}(l) o
      WHERE l.prefix = the_prefix AND l.key = decode(h.item ->> 'key', 'hex')
        AND o.id || '.' || o.number || '.' || o.owner = h.item ->> 'token' AND NOT o.revoked AND o.expires_at > moment
    );
  END IF;
  IF missing IS NOT NULL OR before.id IS NOT NULL OR EXISTS (
    SELECT FROM json_to_recordset(comparisons) AS c (key text, equal integer, revision bigint)
    LEFT JOIN {entries} e ON e.prefix = the_prefix AND e.key = decode(c.key, 'hex')
    WHERE coalesce(e.revision, 0) > c.revision OR (c.equal = 1 AND coalesce(e.revision, 0) <> c.revision)
  ) THEN
    IF again AND before.id IS NULL THEN INSERT INTO {commits} (id, revision, written_at) VALUES (the_id, NULL, {now}()); END IF;
    PERFORM {commit}(again);
    IF missing IS NOT NULL THEN RETURN json_build_array(NULL, json_build_array('not-held', missing)); END IF;
    RETURN json_build_array(NULL, json_build_array('conflict', {read_keys}(the_prefix, reads, NULL) -> 1));
  END IF;
  IF json_array_length(puts) + json_array_length(deletes) > 0 THEN
    it.revision := it.revision + 1;
    INSERT INTO {entries} (prefix, key, value, revision)
    SELECT the_prefix, decode(p.key, 'hex'), decode(p.value, 'hex'), it.revision FROM json_to_recordset(puts) AS p (key text, value text)
    ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, revision = excluded.revision;
    DELETE FROM {entries} e USING json_to_recordset(deletes) AS d (key text) WHERE e.prefix = the_prefix AND e.key = decode(d.key, 'hex');
    IF FOUND THEN it.deleted := it.revision; END IF;
    UPDATE {stores} s SET revision = it.revision, deleted = it.deleted WHERE s.prefix = the_prefix;
    INSERT INTO {commits} (id, revision, written_at) VALUES (the_id, it.revision, {now}());
  END IF;
  PERFORM {commit}(true);
  RETURN json_build_array(NULL, json_build_array('committed', it.revision::text));
END $$;

-- Whose turn it is to tidy: one process does it for all. → whether it is ours
CREATE OR REPLACE FUNCTION {tidy}(idle_ms float8) RETURNS json LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  moment float8 := {now}();
BEGIN
  -- It is there, unless somebody has emptied the tables.
  INSERT INTO {meta} (one, version, floor, tidied_at) VALUES (1, 1, (moment * 1000)::bigint, 0) ON CONFLICT (one) DO NOTHING;
  UPDATE {meta} SET tidied_at = moment WHERE tidied_at <= moment - idle_ms / 2;
  IF NOT FOUND THEN RETURN json_build_array(moment, false); END IF;
  DELETE FROM {clients} WHERE alive_until <= moment - idle_ms;
  DELETE FROM {news} WHERE written_at <= moment - idle_ms;
  DELETE FROM {commits} WHERE written_at <= moment - idle_ms;
  RETURN json_build_array(moment, true);
END $$;

-- A page of what nobody came near for so long: deleted, if nobody uses it, and the floor raised in the same transaction, so that a row
-- that is made anew goes on from there. What is held or waited for, perhaps by the dead, is settled. → prefix and key to go on from
CREATE OR REPLACE FUNCTION {tidy_page}(us text, idle_ms float8, after_prefix bytea, after_key bytea, most integer) RETURNS json
LANGUAGE plpgsql VOLATILE SET lock_timeout = '2s' AS $$
DECLARE
  moment float8 := {now}();
  it {locks};
  was {locks};
  highest bigint := 0;
  looked integer := 0;
BEGIN
  -- First, since whoever makes a row where transactions keep their snapshot locks it, and then waits for others.
  PERFORM FROM {meta} FOR UPDATE;
  FOR it IN
    SELECT * FROM {locks} l
    WHERE (l.prefix, l.key) > (after_prefix, after_key) AND l.updated_at <= moment - idle_ms
    ORDER BY l.prefix, l.key LIMIT most FOR UPDATE SKIP LOCKED
  LOOP
    looked := looked + 1;
    was := it;
    it := {settle}(it, moment, NULL, us);
    IF it.used = 0 AND it.waiting = 0 THEN
      DELETE FROM {locks} WHERE prefix = it.prefix AND key = it.key;
      highest := greatest(highest, it.last);
    ELSIF it IS DISTINCT FROM was THEN
      PERFORM {save}(it, moment);
    END IF;
  END LOOP;
  UPDATE {meta} SET floor = highest WHERE floor < highest;
  PERFORM {commit}(true);
  RETURN json_build_array(moment, CASE WHEN looked = most THEN json_build_array(encode(it.prefix, 'hex'), encode(it.key, 'hex')) END);
END $$;
