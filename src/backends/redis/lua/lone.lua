-- Releases a lock by its own key alone, while its slot is on the way from one node of a cluster to another. Scripts with several
-- keys are refused then, and some of those keys may be here and others there; but a single key is always found. So nothing is
-- written but that key, and nobody is handed the lock: whoever waits finds out by asking.
--
-- KEYS[1] = the lock. ARGV[1] = claim id.
-- Reply: 1 released | 0 not ours

local value = redis.call('GET', KEYS[1]) or ''
if string.sub(string.gsub(value, '^~', ''), 1, 32) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
