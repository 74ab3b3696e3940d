-- How the procedures are called. Every value goes as the hexadecimal digits of its bytes (of keys, which are such digits already, that
-- is twice), and the answer comes as bytes: so no character set, quoting or SQL mode of somebody's connection can change them.

-- @statement isThere
SELECT CONCAT(COUNT(*), ' ', {database} IS NOT NULL, ' ', VERSION()) AS result FROM information_schema.ROUTINES
WHERE ROUTINE_SCHEMA = {database} AND ROUTINE_NAME = {last_procedure}

-- @statement claim
CALL {claim}(UNHEX(UNHEX(?)), UNHEX(?), CONVERT(UNHEX(?) USING utf8mb4), UNHEX(?) = 'true')

-- @statement claimLock
CALL {claim_lock}(UNHEX(UNHEX(?)), UNHEX(?), UNHEX(UNHEX(?)), UNHEX(?), UNHEX(?), UNHEX(?) = 'true')

-- @statement renew
CALL {renew}(UNHEX(UNHEX(?)), UNHEX(?), CONVERT(UNHEX(?) USING utf8mb4))

-- @statement release
CALL {release}(UNHEX(UNHEX(?)), UNHEX(?), CONVERT(UNHEX(?) USING utf8mb4))

-- @statement releaseLock
CALL {release_lock}(UNHEX(UNHEX(?)), UNHEX(?), UNHEX(UNHEX(?)), UNHEX(?))

-- @statement revoke
CALL {revoke}(UNHEX(UNHEX(?)), UNHEX(?), UNHEX(UNHEX(?)), UNHEX(?) = 'true')

-- @statement inspect
CALL {inspect}(UNHEX(UNHEX(?)), UNHEX(UNHEX(?)), UNHEX(UNHEX(?)), UNHEX(?))

-- @statement readNews
CALL {read_news}(UNHEX(?))

-- @statement leave
CALL {leave}(UNHEX(?))

-- @statement readKeys
CALL {read_keys}(UNHEX(UNHEX(?)), CONVERT(UNHEX(?) USING utf8mb4), NULLIF(UNHEX(?), ''), UNHEX(?))

-- @statement commitKeys
CALL {commit_keys}(
  UNHEX(UNHEX(?)), UNHEX(?), UNHEX(?) = 'true', CONVERT(UNHEX(?) USING utf8mb4), CONVERT(UNHEX(?) USING utf8mb4),
  CONVERT(UNHEX(?) USING utf8mb4), CONVERT(UNHEX(?) USING utf8mb4), CONVERT(UNHEX(?) USING utf8mb4)
)

-- @statement tidy
CALL {tidy}(UNHEX(?))

-- @statement tidyPage
CALL {tidy_page}(UNHEX(?), UNHEX(?), UNHEX(UNHEX(?)), UNHEX(UNHEX(?)), UNHEX(?))
