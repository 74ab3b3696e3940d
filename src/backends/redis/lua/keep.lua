-- Renews locks by their own keys alone: all that most renewals are about, and all that can be reached while a slot is on its way
-- from one node of a cluster to another. Never shortens.
--
-- KEYS = the locks. ARGV[1] = owner, ARGV[2] = '@' in a cluster, ARGV[3] = the claim ids without anything in between, then the ttl
-- in ms: one for all, or one each.
-- Reply: server ms, the node's id ('' unless in a cluster), and a text with one character each: 1 held, 2 revoked, 0 not ours (any
-- more).

local call, pcall = redis.call, redis.pcall
local owner = ARGV[1]
-- Before anything is written: a user may be forbidden to ask.
local node = ARGV[2] == '@' and call('CLUSTER', 'MYID') or ''
local time = call('TIME')
local states = {}
local ids = ARGV[3]
for item = 1, #KEYS do
  local value = pcall('GET', KEYS[item])
  -- A key of another type is not our lock.
  if type(value) ~= 'string' then value = '' end
  local id = string.sub(ids, item * 32 - 31, item * 32)
  local state = '0'
  if string.sub(value, 1, 32) == id and string.sub(value, string.find(value, '.', 34, true) + 1) == owner then
    call('PEXPIRE', KEYS[item], ARGV[3 + item] or ARGV[4], 'GT')
    state = '1'
  elseif string.sub(value, 1, 33) == '~' .. id then
    state = '2'
  end
  states[item] = state
end
return { time[1] * 1000 + math.floor(time[2] / 1000), node, table.concat(states) }
