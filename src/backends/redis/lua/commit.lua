-- Writes keys for a transaction, if all comparisons are true.
--
-- KEYS[1] = P:stm1 (see see.lua), KEYS[2] = P:stm1:{T}:<commit id>: what came of it, for a minute, since its answer may get lost. Then
-- the locks that have to be held.
-- ARGV[1] = 'again' if it may have been carried out already, or may yet be by an earlier sending; ARGV[2..5] = how many comparisons,
-- puts, deletes and reads follow. A comparison is a key, '=' or '<', a revision; a put is a key and a value; the others are keys. At the
-- end, for each of the locks the value that it has to have.
-- Items of the reply: 'committed' and its revision; or 'not-held' and which of the locks; or 'conflict', the last revision, and what
-- stands at each of the reads.

local hash, record = KEYS[1], KEYS[2]
local done = redis.call('GET', record)
if done and done ~= 'refused' then return { 0, '', { 'committed', done } } end

-- An earlier sending that comes after all must not find that it could be carried out by now.
local function refuse(reply)
  if ARGV[1] == 'again' then redis.call('SET', record, 'refused', 'PX', 60000) end
  return { 0, '', reply }
end

-- Also revoked, the value is another. A key of another type is not our lock.
local locks = #KEYS - 2
for i = 1, locks do
  if redis.pcall('GET', KEYS[i + 2]) ~= ARGV[#ARGV - locks + i] then return refuse({ 'not-held', i }) end
end

local last, deleted = string.match(redis.call('HGET', hash, '') or '0 0', '^(%d+) (%d+)$')
local at = 5
local function next_word()
  at = at + 1
  return ARGV[at]
end

local conflict = done == 'refused'
for _ = 1, ARGV[2] do
  local key, how, revision = next_word(), next_word(), tonumber(next_word())
  local own = tonumber(string.match(redis.call('HGET', hash, key) or '', '^%d+') or 0)
  if own > revision or (how == '=' and own ~= revision) then conflict = true end
end

if conflict then
  local found = { 'conflict', last }
  at = at + ARGV[3] * 2 + ARGV[4]
  for i = 1, ARGV[5] do found[i + 2] = redis.call('HGET', hash, next_word()) or '' end
  return refuse(found)
end

if ARGV[3] + ARGV[4] == 0 then return { 0, '', { 'committed', last } } end
local time = redis.call('TIME')
-- The clock, so that no revision comes twice when the last one is forgotten; unless it was set back.
local revision = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
redis.call('HSET', hash, '', revision .. ' ' .. deleted)
for _ = 1, ARGV[3] do redis.call('HSET', hash, next_word(), revision .. ' ' .. next_word()) end
for _ = 1, ARGV[4] do
  if redis.call('HDEL', hash, next_word()) == 1 then redis.call('HSET', hash, '', revision .. ' ' .. revision) end
end
redis.call('SET', record, revision, 'PX', 60000)
return { 0, '', { 'committed', revision } }
