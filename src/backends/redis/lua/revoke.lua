-- Takes a lock from whoever holds it.
--
-- KEYS, ARGV[1..3], reply: see _store.lua; ARGV[4] = 'told': it can no longer be renewed, and its holder is told to let go;
-- 'now': it is free at once, and its holder is told. ARGV[5] = the value that was seen: a request that is carried out twice must
-- not take the lock from the next holder too.
-- Item of the reply: { 'told' | 'freed' | 'outsider' } or { 'changed', the value that is there now ('' if free) }

-- @include _store

return each(1, function()
  local lock, queue, heard, meta = keys_of(1)
  local value = redis.call('GET', lock)
  if not value or string.gsub(value, '^~', '') ~= string.gsub(ARGV[5], '^~', '') then
    return { 'changed', value or '' }
  end
  local id, who = string.match(value, '^~?(%x+)%.%d+%.(.*)$')
  local outsider = not id or #id ~= 32
  if ARGV[4] ~= 'now' then
    if outsider then return { 'outsider' } end
    if string.sub(value, 1, 1) ~= '~' then redis.call('SET', lock, '~' .. value, 'KEEPTTL') end
  else
    if not promote(lock, queue, heard, meta) then redis.call('DEL', lock, meta) end
  end
  if not outsider then redis.pcall('PUBLISH', wake .. who, 'revoked ' .. id .. ' ' .. lock) end
  return { ARGV[4] == 'now' and 'freed' or 'told' }
end)
