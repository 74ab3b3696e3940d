-- Claims locks that are free and that nobody waits for: the common case, in few words. Whatever is not so simple is left as it is,
-- for claim.lua.
--
-- KEYS[1] = P:fence, then two per item: lock, queue. ARGV[1] = owner, ARGV[2] = the highest epoch this client has seen, ARGV[3] = '@'
-- in a cluster, then per item: claim id, a space, ttl ms.
-- Reply: a text of words: the first epoch (those of the next items follow it, and it is the server's time in microseconds), one
-- character per item (1: taken; 0: left), and the node's id in a cluster. Nothing if the epoch cannot be the time.

local call = redis.call
-- Before anything is written: a user may be forbidden to ask.
local node = ARGV[3] == '@' and ' ' .. call('CLUSTER', 'MYID') or ''
local time = call('TIME')
local epoch = time[1] .. string.format('%06d', time[2])
local seen = ARGV[2]
if #seen > 16 or (#seen == 16 and seen >= epoch) then return '' end
local count = (#KEYS - 1) / 2
local last = call('GETSET', KEYS[1], count == 1 and epoch or string.format('%.0f', epoch + count - 1))
if last and (#last > 16 or (#last == 16 and last >= epoch)) then
  call('SET', KEYS[1], last)
  return ''
end
local owner = ARGV[1]
local states = ''
for item = 1, count do
  local lock = KEYS[item * 2]
  if call('EXISTS', lock, KEYS[item * 2 + 1]) == 0 then
    local own = item == 1 and epoch or string.format('%.0f', epoch + item - 1)
    local claim = ARGV[item + 3]
    call('SET', lock, string.sub(claim, 1, 32) .. '.' .. own .. '.' .. owner, 'PX', string.sub(claim, 34))
    states = states .. '1'
  else
    states = states .. '0'
  end
end
return epoch .. ' ' .. states .. node
