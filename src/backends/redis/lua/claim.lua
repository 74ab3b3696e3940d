-- Claims locks: grants what is free, and queues (or leaves) the rest.
--
-- KEYS, ARGV[1..3], reply: see _store.lua. ARGV[4] = 'leave', 'queue', or 'hearing': queue, but not without a subscription that
-- could tell of the grant (one that has a place is queued in any case). Then per item one text: claim id, ttl
-- ms, and place and type and metadata, if there are any.
-- Items of the reply; 'passed over' tells whether it had a place and was not found in the queue any more
--     'epoch waiting passed-over' held
--   | { 0, place, ahead, waiting, holder's value, its pttl (-2: free), its type and metadata, subscriptions of our own channel,
--       passed over } queued
--   | { 2, ahead, waiting, holder's value, its pttl (-2: free), its type and metadata } refused
--   | { 3, epoch } revoked | { -1, error }

-- @include _store

local if_busy = ARGV[4]

-- A text, since it is the most common answer, and a list of its own would take the client much longer to read.
local function held(epoch, waiting, passed_over)
  return epoch .. ' ' .. waiting .. ' ' .. passed_over
end

local function blocker(lock, meta)
  local value = redis.call('GET', lock)
  if not value then return '', -2, '' end
  return value, redis.call('PTTL', lock), about_of(value, meta)
end

-- Whoever hands over in memory has to know that others wait.
local function hint(lock, value)
  local id, who = string.match(value, '^(%x+)%.%d+%.(.*)$')
  if id and #id == 32 then redis.pcall('PUBLISH', wake .. who, 'contended ' .. id .. ' ' .. lock) end
end

local function enqueue(queue, heard, member, place, is_deaf)
  local last = tonumber(redis.call('HGET', heard, '#')) or 0
  local ticket = tonumber(place) or tonumber(redis.call('ZSCORE', queue, member)) or last + 1
  if ticket > last then redis.call('HSET', heard, '#', ticket) end
  local added = redis.call('ZADD', queue, ticket, member)
  redis.call('HSET', heard, owner, now .. (is_deaf and 'd' or ''))
  redis.call('PEXPIRE', queue, QUEUE_MS)
  redis.call('PEXPIRE', heard, QUEUE_MS)
  return ticket, place ~= '' and added or 0
end

return each(#ARGV - 4, function(item)
  local lock, queue, heard, meta = keys_of(item)
  local id, ttl, place, about = string.match(ARGV[4 + item], '^(%x+) (%d+) ?(%d*) ?(.*)$')
  if place == '' and redis.call('EXISTS', lock, queue) == 0 then return held(grant(lock, meta, id, ttl, owner, about), 0, 0) end
  local value = redis.call('GET', lock)

  if value and id_of(value) == id then
    -- Only ever longer: this may be an old request that comes after the hold was extended. Written even if it is the same, since
    -- WAIT speaks of the connection's last write.
    if redis.call('PTTL', lock) <= tonumber(ttl) then
      redis.call('PEXPIRE', lock, ttl)
      keep_about(meta, id, ttl, about)
    end
    return held(string.match(value, '^%x+%.(%d+)'), redis.call('ZCARD', queue), 0)
  end
  if value and string.sub(value, 1, 33) == '~' .. id then return { 3, string.match(value, '^~%x+%.(%d+)') } end
  if not value and redis.call('EXISTS', queue) == 0 then
    return held(grant(lock, meta, id, ttl, owner, about), 0, place ~= '' and 1 or 0)
  end

  local member = member_of(id, ttl, about)
  local subscribed = if_busy ~= 'leave' and subscriptions(owner)
  if if_busy == 'leave' or (if_busy == 'hearing' and place == '' and subscribed == 0) then
    if place ~= '' then redis.call('ZREM', queue, member) end
    if not value and not promote(lock, queue, heard, meta) then
      return held(grant(lock, meta, id, ttl, owner, about), 0, 0)
    end
    local waiting = redis.call('ZCARD', queue)
    return { 2, waiting, waiting, blocker(lock, meta) }
  end

  local ticket, passed_over = enqueue(queue, heard, member, place, subscribed == 0)
  if not value then
    local winner, epoch = promote(lock, queue, heard, meta, id)
    if winner == id then return held(epoch, redis.call('ZCARD', queue), passed_over) end
  end
  local held_by, expires, holder_about = blocker(lock, meta)
  local ahead = redis.call('ZRANK', queue, member)
  if ahead == 0 then hint(lock, held_by) end
  return {
    0,
    string.format('%.0f', ticket),
    ahead,
    redis.call('ZCARD', queue) - 1,
    held_by,
    expires,
    holder_about,
    subscribed or 1,
    passed_over,
  }
end)
