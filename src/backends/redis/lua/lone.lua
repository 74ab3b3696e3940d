-- Renews or releases a lock by its own key alone, while its slot is on the way from one node of a cluster to another. Scripts with
-- several keys are refused then, and some of those keys may be here and others there; but a single key is always found. So nothing
-- is written but that key, and nobody is handed the lock: whoever waits finds out by asking.
--
-- KEYS[1] = the lock. ARGV[1] = 'renew' or 'release', ARGV[2] = claim id, ARGV[3] = owner, ARGV[4] = ttl ms.
-- Reply: as in _store.lua, with one item as in renew.lua or release.lua: { 1, 0, epoch } held, or released | { 0 } not ours |
-- { 2 } revoked

local function item()
  local value = redis.call('GET', KEYS[1]) or ''
  local revoked, id, epoch, who = string.match(value, '^(~?)(%x+)%.(%d+)%.(.*)$')
  if id ~= ARGV[2] then return { 0 } end
  if ARGV[1] == 'release' then
    redis.call('DEL', KEYS[1])
    return { 1 }
  end
  if revoked == '~' then return { 2 } end
  if who ~= ARGV[3] then return { 0 } end
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
  return { 1, 0, epoch }
end

return { 0, '', { item() } }
