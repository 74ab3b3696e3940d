-- What is there of some keys, for transactions.
--
-- KEYS[1] = P:stm1. ARGV[1] = as of which revision, or '', then the keys.
-- Items of the reply: the last revision, then for each key what stands there ('' if nothing). None at all, if it cannot be told any
-- more what was there at the revision: one of them has changed since, or may have been deleted.
--
-- P:stm1 is a hash: key → revision, a space, 't' and text or 'b' and base64. '' → the revision of the last commit, a space, that of
-- the last one that deleted something. Revisions are the server's microseconds, far below 2^53, from where on Lua's numbers round.

local at = tonumber(ARGV[1])
local last, deleted = string.match(redis.call('HGET', KEYS[1], '') or '0 0', '^(%d+) (%d+)$')
local found = { last }
for i = 2, #ARGV do
  local entry = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  if at and tonumber(string.match(entry, '^%d+') or deleted) > at then return { 0, '', {} } end
  found[i] = entry
end
return { 0, '', found }
