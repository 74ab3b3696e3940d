-- Renews what is still ours. A renewal never shortens unless it is exact.
--
-- KEYS, ARGV[1..3]: see _store.lua; then per item: claim id, ttl ms, '1' if exact, '1' if it has type or metadata.
-- Reply: server ms, then per item { 1, waiting } held | { 0 } not ours | { 2 } revoked | { -1, error }

-- @include _store

return each((#ARGV - 3) / 4, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local first = 4 + (item - 1) * 4
  local id, ttl, exact, about = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  local value = redis.call('GET', lock)

  if value and id_of(value) == id then
    local epoch, who = string.match(value, '^%x+%.(%d+)%.(.*)$')
    if who ~= owner then
      -- Adopted from another process: from now on it is ours.
      redis.call('SET', lock, id .. '.' .. epoch .. '.' .. owner, 'PX', ttl)
    elseif exact == '1' or redis.call('PTTL', lock) < tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
    end
    if about == '1' then redis.call('PEXPIRE', meta, ttl) end
    return { 1, redis.call('ZCARD', queue) }
  end
  if value and string.sub(value, 1, 33) == '~' .. id then return { 2 } end
  if not value then promote(lock, queue, heard, meta) end
  return { 0 }
end)
