-- Releases locks that nobody waits for: the common case, in few words. Whatever is not so simple is left as it is, for release.lua.
--
-- KEYS = two per item: lock, queue. ARGV = the claim ids.
-- Reply: a text with one character per item. 1: released; 0: left.

local call = redis.call
local states = ''
for item = 1, #ARGV do
  local lock = KEYS[item * 2 - 1]
  local value = redis.pcall('GET', lock)
  if type(value) == 'string' and string.sub(value, 1, 32) == ARGV[item] and call('EXISTS', KEYS[item * 2]) == 0 then
    call('DEL', lock)
    states = states .. '1'
  else
    states = states .. '0'
  end
end
return states
