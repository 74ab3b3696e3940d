-- How the functions are called. All values are text, and so is the answer: so it is the same for every client.

-- @statement isThere
SELECT count(*)::text AS result FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1::text AND p.proname = $2::text

-- @statement isBackend
SELECT count(*)::text AS result FROM pg_catalog.pg_stat_activity WHERE pid = $1::text::bigint

-- @statement notify
SELECT pg_notify($1::text, $2::text)::text AS result

-- @statement claim
SELECT {claim}(decode($1::text, 'hex'), $2::text, $3::text::json, $4::text::boolean, $5::text::boolean)::text AS result

-- @statement renew
SELECT {renew}(decode($1::text, 'hex'), $2::text, $3::text::json)::text AS result

-- @statement release
SELECT {release}(decode($1::text, 'hex'), $2::text, $3::text::json)::text AS result

-- @statement revoke
SELECT {revoke}(decode($1::text, 'hex'), $2::text, decode($3::text, 'hex'), $4::text::boolean)::text AS result

-- @statement inspect
SELECT {inspect}(decode($1::text, 'hex'), decode($2::text, 'hex'), decode($3::text, 'hex'), $4::text::integer)::text AS result

-- @statement readNews
SELECT {read_news}($1::text)::text AS result

-- @statement leave
SELECT {leave}($1::text)::text AS result

-- @statement readKeys
SELECT {read_keys}(decode($1::text, 'hex'), $2::text::json, nullif($3::text, '')::bigint)::text AS result

-- @statement commitKeys
SELECT {commit_keys}(
  decode($1::text, 'hex'), $2::text, $3::text::boolean, $4::text::json, $5::text::json, $6::text::json, $7::text::json, $8::text::json
)::text AS result

-- @statement tidy
SELECT {tidy}($1::text::float8)::text AS result

-- @statement tidyPage
SELECT {tidy_page}($1::text, $2::text::float8, decode($3::text, 'hex'), decode($4::text, 'hex'), $5::text::integer)::text AS result

-- @statement endBackend
SELECT pg_terminate_backend(pg_backend_pid())::text AS result
