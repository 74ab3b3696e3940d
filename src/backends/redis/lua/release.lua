-- Releases what is ours, handing it to the next waiter in the same step; withdraws what only waits.
--
-- KEYS, ARGV[1..3], reply: see _store.lua; then per item one text: claim id, ttl ms, and type and metadata, if
-- there are any.
-- Items of the reply: 1 released | 0 not held (any more) | { -1, error }

-- @include _store

return each(#ARGV - 3, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local id, ttl, about = string.match(ARGV[3 + item], '^(%x+) (%d+) ?(.*)$')
  local value = redis.call('GET', lock)

  if value and (id_of(value) == id or string.sub(value, 1, 33) == '~' .. id) then
    if not promote(lock, queue, heard, meta) then redis.call('DEL', lock, meta) end
    return 1
  end
  redis.call('ZREM', queue, member_of(id, ttl, about))
  if not value then promote(lock, queue, heard, meta) end
  return 0
end)
