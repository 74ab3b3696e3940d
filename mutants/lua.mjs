/**
 * The scripts of the Redis backend, each time with one thing wrong: whether the contract tests notice. A mutant is a text that
 * stands in its file exactly once, and what is to stand there instead.
 */
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { embedFolder } from '../scripts/embed.mjs'
import { root } from '../scripts/lib/paths.mjs'
import { run, Stop } from '../scripts/lib/run.mjs'

const LUA = 'src/backends/redis/lua'
/** The scripts themselves first, since most mutants end there; then the backend that uses them. */
const TESTS = ['test/contract/redis-lua.test.ts', 'test/contract/redis-store.test.ts', 'test/contract/redis.test.ts']

/** Each would be a bug that somebody could have written. */
const LUA_MUTANTS = [
  ['take.lua', 'a lock that never expires', `, 'PX', string.sub(claim, 34))`, ')'],
  ['take.lua', 'jumps the queue', `call('EXISTS', lock, KEYS[item * 2 + 1]) == 0`, `call('EXISTS', lock) == 0`],
  ['take.lua', 'an epoch twice within one microsecond', 'last >= epoch', 'last > epoch'],
  ['take.lua', 'an epoch that this client has seen elsewhere', 'seen >= epoch', 'seen > epoch'],
  ['take.lua', 'sets the epoch back', `  call('SET', KEYS[1], last)\n`, ''],
  ['drop.lua', "frees somebody else's", ' and string.sub(value, 1, 32) == ARGV[item]', ''],
  ['drop.lua', 'frees without handing over', ` and call('EXISTS', KEYS[item * 2]) == 0`, ''],
  ['keep.lua', 'renews for somebody else', ` and string.sub(value, string.find(value, '.', 34, true) + 1) == owner`, ''],
  ['keep.lua', 'shortens', `, 'GT')`, ')'],
  ['keep.lua', 'renews what was revoked', `state = '2'`, `state = '1'`],
  ['lone.lua', 'cannot release what was revoked', `string.gsub(value, '^~', '')`, 'value'],
  ['lone.lua', "frees somebody else's", `~= ARGV[1] then return 0 end`, `~= ARGV[1] and value == '' then return 0 end`],
  ['release.lua', "frees somebody else's", 'if value and (id_of(value) == id or', 'if value and (true or'],
  ['release.lua', 'cannot release what was revoked', ` or string.sub(value, 1, 33) == '~' .. id)`, ')'],
  ['release.lua', 'frees without handing over', 'if not promote(lock, queue, heard, meta) then redis', 'if true then redis'],
  ['release.lua', 'leaves the metadata behind', `redis.call('DEL', lock, meta)`, `redis.call('DEL', lock)`],
  ['release.lua', 'leaves a withdrawn claim in the queue', `  redis.call('ZREM', queue, member_of(id, ttl, about))\n`, ''],
  ['release.lua', 'a withdrawal leaves a free lock to nobody', 'if not value then promote(lock, queue, heard, meta) end', ''],
  ['renew.lua', 'renews for somebody else', 'if who ~= owner then return { 0 } end', ''],
  ['renew.lua', 'an old request shortens', 'now <= tonumber(until_ms)', 'now >= tonumber(until_ms)'],
  ['renew.lua', 'takes over by the id alone', 'if value ~= from then', 'if id_of(value) ~= id_of(from) then'],
  ['renew.lua', 'takes over what was revoked', `if value == '~' .. from then return '~' .. id end`, `if value == '~' .. from then value = from end`],
  ['renew.lua', 'lets the metadata expire', `if about == '1' then redis.call('PEXPIRE', meta, ttl) end`, ''],
  ['renew.lua', 'leaves the lock of a holder that is gone to nobody', `  if not value then promote(lock, queue, heard, meta) end\n`, ''],
  ['revoke.lua', 'a revoked lock never expires', `, 'KEEPTTL')`, ')'],
  ['revoke.lua', 'takes it from the next holder, too', ` or string.gsub(value, '^~', '') ~= string.gsub(ARGV[5], '^~', '')`, ''],
  ['revoke.lua', 'takes it without handing over', 'if not promote(lock, queue, heard, meta) then redis', 'if true then redis'],
  ['revoke.lua', 'does not tell the holder', 'if not outsider then', 'if outsider then'],
  ['claim.lua', 'jumps the queue of a lock that has just ended', `if not value and redis.call('EXISTS', queue) == 0 then`, 'if not value then'],
  ['claim.lua', 'grants what was revoked a second time', `return { 3, string.match(value, '^~%x+%.(%d+)') }`, `return held(string.match(value, '^~%x+%.(%d+)'), 0, 0)`],
  ['claim.lua', 'shortens what is asked for again', `redis.call('PTTL', lock) <= tonumber(ttl)`, 'true'],
  ['claim.lua', 'newcomers share a ticket with the last', 'or last + 1', 'or last'],
  ['claim.lua', 'newcomers come before those who come back', 'if ticket > last then', 'if ticket < last then'],
  ['claim.lua', 'one that was passed over has lost its place', 'tonumber(place) or tonumber', 'tonumber'],
  ['claim.lua', 'a queue that nobody asks about stays', `  redis.call('PEXPIRE', queue, QUEUE_MS)\n`, ''],
  ['claim.lua', 'tells the holder of the second only', 'if ahead == 0 then', 'if ahead == 1 then'],
  ['claim.lua', 'one that leaves keeps its place', `if place ~= '' then redis.call('ZREM', queue, member) end`, ''],
  ['_store.lua', 'a lock that never expires', `who, 'PX', ttl)`, 'who)'],
  ['_store.lua', 'last come, first served', `redis.call('ZRANGE', queue, 0, 0)`, `redis.call('ZRANGE', queue, -1, -1)`],
  ['_store.lua', 'one that was granted stays in the queue', 'local epoch = grant(lock, meta, id,', `redis.call('ZADD', queue, 0, head)\n      local epoch = grant(lock, meta, id,`],
  ['_store.lua', 'hands over without a word', 'if granted_ttl == ttl and id ~= asker then', 'if false then'],
  ['_store.lua', 'grants to the dead', 'subscribed > 0 and ttl or nil', 'ttl'],
  ['_store.lua', 'grants to the silent', 'if not last or now - last >= GONE_MS then', 'if not last then'],
  ['_store.lua', 'grants for long to one that cannot be told', `if deaf == 'd' then return math.min(tonumber(ttl), DEAF_TTL_MS) end`, `if deaf == 'd' then return ttl end`],
  ['_store.lua', 'compares epochs as words', 'if #a ~= #b then return #a > #b end', ''],
  ['_store.lua', 'an epoch below one that this client has seen', 'if greater(seen, last) then', 'if false then'],
  ['_store.lua', 'the same epoch again within one microsecond', `  redis.call('INCR', KEYS[1])\n`, ''],
  ['_store.lua', 'sets one epoch aside for many', `micros + (#KEYS - 1) / 4 - 1`, 'micros'],
  ['_store.lua', "tells the last holder's metadata", 'about and id_of(about) == id and', 'about and'],
  ['commit.lua', 'a commit twice', `if done and done ~= 'refused' then`, 'if false then'],
  ['commit.lua', 'what was refused is carried out after all', `if ARGV[1] == 'again' then`, 'if false then'],
  ['commit.lua', 'a commit under a lock that is not held', `return refuse({ 'not-held', i })`, 'local _ = i'],
  ['commit.lua', 'a commit under a lock that was revoked', `redis.pcall('GET', KEYS[i + 2]) ~= `, `string.gsub(redis.call('GET', KEYS[i + 2]) or '', '^~', '') ~= `],
  ['commit.lua', 'a revision twice', 'math.max(last + 1, ', 'math.max(0, '],
  ['commit.lua', 'a deletion is forgotten', `revision .. ' ' .. revision) end`, `revision .. ' ' .. deleted) end`],
  ['commit.lua', 'overwrites what is newer', `own > revision or (how == '=' and own ~= revision)`, `how == '=' and own ~= revision`],
  ['see.lua', 'what is newer than it should be', 'if at and tonumber(', 'if false and tonumber('],
].map(([file, what, from, to]) => ({ file, what, from, to }))

/** Tries all of them; gives those that no test has noticed. */
export async function tryLuaMutants(folder) {
  // Before anything takes its time.
  for (const mutant of LUA_MUTANTS) mutate(mutant)
  const original = await tests(folder, 'original', undefined, TESTS)
  if (original.failed.length > 0 || original.passed === 0) {
    console.error(`The tests are red without any mutant:\n${original.failed.join('\n')}\n${original.output}`)
    throw new Stop()
  }
  console.log(`\n${LUA_MUTANTS.length} mutants of the Lua; the scripts as they are pass ${original.passed} tests\n`)
  const survivors = []
  for (const [index, mutant] of LUA_MUTANTS.entries()) {
    const name = `${mutant.file}: ${mutant.what}`
    const { failed, passed, output } = await tryOne(folder, index, mutant)
    if (failed.length === 0) survivors.push(name)
    // A script that cannot even be read would fail everything, and say nothing about the tests.
    if (passed === 0) throw new Error(`${name}: no test has passed. Is it still Lua?\n${output}`)
    console.log(`${failed.length === 0 ? '✗ survived ' : '✓ killed   '} ${name}${failed.length === 0 ? '' : `\n             by ${by(failed)}`}`)
  }
  console.log(`\n${LUA_MUTANTS.length - survivors.length} of ${LUA_MUTANTS.length} mutants of the Lua killed`)
  if (survivors.length > 0) console.log(`\nNo test has noticed:\n${survivors.join('\n')}`)
  return survivors
}

async function tryOne(folder, index, mutant) {
  const lua = join(folder, String(index), 'lua')
  mkdirSync(lua, { recursive: true })
  cpSync(join(root, LUA), lua, { recursive: true })
  writeFileSync(join(lua, mutant.file), mutate(mutant))
  embedFolder(lua)
  let result
  for (const test of TESTS) {
    result = await tests(folder, `${index}-${TESTS.indexOf(test)}`, `${lua}.ts`, [test])
    if (result.failed.length > 0) break
  }
  return result
}

/** The text of the mutant's file with the change made. */
function mutate({ file, what, from, to }) {
  const [before, after, ...more] = readFileSync(join(root, LUA, file), 'utf8').split(from)
  if (after === undefined || more.length > 0) {
    throw new Error(`The mutant "${what}" has to be written anew: its text is not in ${file} exactly once:\n${from}`)
  }
  return before + to + after
}

async function tests(folder, name, lua, files) {
  const report = join(folder, `${name}.json`)
  const args = ['run', '--config', 'mutants/lua.vitest.config.mjs', '--reporter=json', `--outputFile=${report}`, ...files]
  const env = { HOLDFAST_TEST_DIR: folder, ...(lua === undefined ? {} : { HOLDFAST_MUTANT: lua }) }
  const { output } = await run('vitest', args, { env })
  const { testResults } = JSON.parse(readFileSync(report, 'utf8'))
  const results = testResults.flatMap(({ assertionResults }) => assertionResults)
  // A file whose server did not start, for one: that is not the mutant's doing.
  const notRun = testResults.find((file) => file.status === 'failed' && !file.assertionResults.some(({ status }) => status === 'failed'))
  if (notRun) throw new Error(`${notRun.name} could not be run: ${notRun.message}\n${output}`)
  return {
    passed: results.filter(({ status }) => status === 'passed').length,
    failed: results.filter(({ status }) => status === 'failed').map(({ fullName }) => fullName),
    output
  }
}

const by = ([first, ...others]) => `"${first}"${others.length > 0 ? ` and ${others.length} more` : ''}`
