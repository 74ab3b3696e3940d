-- Releases what is ours, handing it to the next waiter in the same step; withdraws what only waits.
--
-- KEYS, ARGV[1..3], reply: see _store.lua; then per item: claim id, ttl ms, type and metadata ('' for none).
-- Items of the reply: 1 released | 0 not held (any more) | { -1, error }

-- Held and nobody waits is the common case: see claim.lua.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
if #KEYS == 5 and ARGV[6] == '' and call('EXISTS', KEYS[3]) == 0 then
  local value = call('GET', KEYS[2])
  if value and string.sub(value, 1, 32) == ARGV[4] then
    call('DEL', KEYS[2])
    return 1
  end
end

-- @include _store

return each((#ARGV - 3) / 3, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local first = 4 + (item - 1) * 3
  local id, ttl, about = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local value = redis.call('GET', lock)

  if value and (id_of(value) == id or string.sub(value, 1, 33) == '~' .. id) then
    if not promote(lock, queue, heard, meta) then redis.call('DEL', lock, meta) end
    return 1
  end
  redis.call('ZREM', queue, member_of(id, ttl, about))
  if not value then promote(lock, queue, heard, meta) end
  return 0
end)
