-- What every script shares: the server's time, epochs, who is alive, and handing a free lock to whoever is next.
--
-- Layout, for a key K under the prefix P (T: a short tag that hashes to the slot of the lock's own key)
--   P:lock:K      string  <claim id>.<epoch>.<owner>, PX = TTL. '~' in front: revoked, not to be renewed.
--   P:q1:{T}:K    zset    the waiters by ticket; member <claim id>|<ttl ms>|<slots>|<owner>\n<type and metadata>
--   P:w1:{T}:K    hash    owner -> when it was last heard (server ms), with 'd' if it is deaf; '#' -> the last ticket
--   P:m1:{T}:K    string  <claim id>\n<type and metadata> of the holder, if it has any, PX = TTL
--   P:fence       string  the last epoch; in a cluster one per slot, P:fence:{T}
-- Queue and hash go 10 s after the last word of a waiter, the rest with the lock: nothing stays behind per key.
--
-- KEYS[1] = P:fence, then four per item: lock, queue, heard, meta. All in one slot.
-- ARGV[1] = owner, ARGV[2] = the highest epoch this client has seen, ARGV[3] = 'P:wake:' ('P:wake:@' in a cluster), then the items.
-- Reply: server ms, the node's id ('' unless in a cluster), and one item each.
local owner, seen, wake = ARGV[1], ARGV[2], ARGV[3]
-- A node of a cluster knows only of its own subscriptions, so everybody listens to each node on a channel of that node.
local node = ''
if string.sub(wake, -1) == '@' then
  node = redis.call('CLUSTER', 'MYID')
  wake = wake .. node .. ':'
end
local QUEUE_MS = 10000
local GONE_MS = 2500
local DEAF_TTL_MS = 2000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Epochs are compared and kept as decimal strings: from 2^53 on a Lua number would round them.
local function greater(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

-- Each item grants at most once: the microseconds that follow are set aside for all of them in one go.
local set_aside
local function next_epoch()
  if set_aside then
    set_aside = set_aside + 1
    return string.format('%.0f', set_aside)
  end
  local micros = time[1] .. string.format('%06d', time[2])
  local last = redis.call('GET', KEYS[1]) or '0'
  if greater(seen, last) then
    redis.call('SET', KEYS[1], seen)
    last = seen
  end
  if greater(micros, last) then
    redis.call('SET', KEYS[1], string.format('%.0f', micros + (#KEYS - 1) / 4 - 1))
    -- Only now: had it failed, nothing would have been set aside for the items that follow.
    set_aside = tonumber(micros)
    return micros
  end
  redis.call('INCR', KEYS[1])
  return redis.call('GET', KEYS[1])
end

local function id_of(value)
  return string.sub(value, 1, 32)
end

local function keys_of(item)
  local first = 2 + (item - 1) * 4
  return KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]
end

-- How many subscriptions an owner's channel has here; nil if we may not know.
local function subscriptions(who)
  local counted = redis.pcall('PUBSUB', 'NUMSUB', wake .. who)
  return not counted.err and counted[2] or nil
end

-- How to grant to a waiter: nil if it is gone. Both signs of life, because each alone lies: a subscription outlives a frozen
-- process, and a word outlives a killed one. One that cannot be told finds out by its heartbeat, and until then has the lock
-- for a short while only.
local function ttl_for(who, heard, ttl)
  local last, deaf = string.match(redis.call('HGET', heard, who) or '', '^(%d+)(d?)$')
  if not last or now - last >= GONE_MS then return nil end
  if deaf == 'd' then return math.min(tonumber(ttl), DEAF_TTL_MS) end
  local subscribed = subscriptions(who)
  if not subscribed then return math.min(tonumber(ttl), DEAF_TTL_MS) end
  return subscribed > 0 and ttl or nil
end

local function keep_about(meta, id, ttl, about)
  if about ~= '' then redis.call('SET', meta, id .. '\n' .. about, 'PX', ttl) end
end

-- An outsider's DEL can leave the last holder's behind: so it says whose it is.
local function about_of(value, meta)
  local about = redis.call('GET', meta)
  local id = id_of(string.gsub(value, '^~', ''))
  return about and id_of(about) == id and string.sub(about, 34) or ''
end

local function grant(lock, meta, id, ttl, who, about)
  local epoch = next_epoch()
  redis.call('SET', lock, id .. '.' .. epoch .. '.' .. who, 'PX', ttl)
  keep_about(meta, id, ttl, about)
  return epoch
end

local function member_of(id, ttl, about)
  return id .. '|' .. ttl .. '|1|' .. owner .. '\n' .. about
end

-- Gives a lock that is free, or ours to give, to the first live waiter; false if there is none. A waiter that is passed over
-- keeps its ticket and comes back to its place when it asks again. `asker` is alive, and hears of it by the reply.
local function promote(lock, queue, heard, meta, asker)
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then return false end
    -- Removed first: out of memory, Redis lets a script go on writing only once it has written.
    redis.call('ZREM', queue, head)
    local id, ttl, who, about = string.match(head, '^(%x+)|(%d+)|%d+|([^\n]*)\n(.*)$')
    local granted_ttl = id == asker and ttl or ttl_for(who, heard, ttl)
    if granted_ttl then
      local epoch = grant(lock, meta, id, granted_ttl, who, about)
      if granted_ttl == ttl and id ~= asker then
        local waiting = redis.call('ZCARD', queue)
        redis.pcall('PUBLISH', wake .. who, 'granted ' .. id .. ' ' .. epoch .. ' ' .. now .. ' ' .. waiting .. ' ' .. lock)
      end
      return id, epoch
    end
  end
end

-- One bad item, such as a key of another type, must not fail its neighbours after they have been written.
local function each(count, step)
  local items = {}
  for item = 1, count do
    local ok, result = pcall(step, item)
    if not ok then result = { -1, type(result) == 'table' and result.err or tostring(result) } end
    items[item] = result
  end
  return { now, node, items }
end
