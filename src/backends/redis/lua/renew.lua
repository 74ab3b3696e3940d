-- Renews what is still ours. A renewal never shortens unless it is exact.
--
-- KEYS, ARGV[1..3]: see _store.lua; then per item: claim id, ttl ms, until when it may shorten (server ms, '' if it may not: an
-- old request must not cut short what was extended since), '1' if it has type or metadata, the owner from whom it is taken
-- over ('' if it is ours).
-- Reply: server ms, then per item { 1, waiting, epoch } held | { 0 } not ours | { 2 } revoked | { -1, error }

-- @include _store

return each((#ARGV - 3) / 5, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local first = 4 + (item - 1) * 5
  local id, ttl, shorten_until, about, from = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3], ARGV[first + 4]
  local value = redis.call('GET', lock)

  if value and id_of(value) == id then
    local epoch, who = string.match(value, '^%x+%.(%d+)%.(.*)$')
    if who ~= owner then
      -- Only whoever it was given to may take it, and only once; this may also be a late renewal of its last owner.
      if from == '' or who ~= from then return { 0 } end
      redis.call('SET', lock, id .. '.' .. epoch .. '.' .. owner, 'KEEPTTL')
    end
    if redis.call('PTTL', lock) < tonumber(ttl) or (shorten_until ~= '' and now <= tonumber(shorten_until)) then
      redis.call('PEXPIRE', lock, ttl)
      if about == '1' then redis.call('PEXPIRE', meta, ttl) end
    end
    return { 1, redis.call('ZCARD', queue), epoch }
  end
  if value and string.sub(value, 1, 33) == '~' .. id then return { 2 } end
  if not value then promote(lock, queue, heard, meta) end
  return { 0 }
end)
