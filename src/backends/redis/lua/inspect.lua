-- Reads locks with their holders and waiters. Writes nothing.
--
-- KEYS, ARGV[1..3], reply: see _store.lua.
-- Items of the reply: { value ('' if free), pttl, the holder's type and metadata, { waiters } } | { -1, error }

-- @include _store

return each((#KEYS - 1) / 4, function(item)
  local lock, queue, _, meta = keys_of(item)
  local value = redis.call('GET', lock) or ''
  return { value, redis.call('PTTL', lock), about_of(value, meta), redis.call('ZRANGE', queue, 0, -1) }
end)
