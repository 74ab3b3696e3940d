-- Renews what is still ours. A renewal never shortens unless it is exact.
--
-- KEYS, ARGV[1..3], reply: see _store.lua; then per item: claim id, ttl ms, until when it may shorten (server ms, a space, and on
-- which node, since each has a clock of its own; '' if it may not: an old request must not cut short what was extended since), '1' if it has type or metadata, the token of the claim that is taken
-- over ('' if it is ours).
-- Items of the reply: { 1, waiting, epoch } held | { 0 } not ours | { 2 } revoked | { -1, error }

-- @include _store

-- The claim that was given away becomes ours: another id, so that nobody else can take it, and what its last owner still has
-- on its way does not touch it.
local function take_over(lock, meta, value, id, from)
  if value == '~' .. from then return '~' .. id end
  if value ~= from then return value end
  local given = id_of(from)
  local taken = id .. '.' .. string.match(from, '^%x+%.(%d+)') .. '.' .. owner
  redis.call('SET', lock, taken, 'KEEPTTL')
  local about = redis.call('GET', meta)
  if about and id_of(about) == given then redis.call('SET', meta, id .. string.sub(about, 33), 'KEEPTTL') end
  return taken
end

return each((#ARGV - 3) / 5, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local first = 4 + (item - 1) * 5
  local id, ttl, shorten_until, about, from = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 3], ARGV[first + 4]
  local value = redis.call('GET', lock)

  if value and from ~= '' then value = take_over(lock, meta, value, id, from) end
  if value and id_of(value) == id then
    local epoch, who = string.match(value, '^%x+%.(%d+)%.(.*)$')
    if who ~= owner then return { 0 } end
    local until_ms, at = string.match(shorten_until, '^(%d+) (.*)$')
    if redis.call('PTTL', lock) < tonumber(ttl) or (until_ms and at == node and now <= tonumber(until_ms)) then
      redis.call('PEXPIRE', lock, ttl)
      if about == '1' then redis.call('PEXPIRE', meta, ttl) end
    end
    return { 1, redis.call('ZCARD', queue), epoch }
  end
  if value and string.sub(value, 1, 33) == '~' .. id then return { 2 } end
  if not value then promote(lock, queue, heard, meta) end
  return { 0 }
end)
