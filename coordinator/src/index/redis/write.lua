-- Writes a run. KEYS: the run. ARGV: its sequence, its summary, when it expires, then pairs of a set and a member.
-- A summary that is older than the stored one changes nothing.
local known = redis.call('HMGET', KEYS[1], 's', 'm')
if known[1] and tonumber(known[1]) > tonumber(ARGV[1]) then
  return 0
end
local members = table.concat(ARGV, '\n', 4)
if known[2] and known[2] ~= members then
  local kept = {}
  for i = 4, #ARGV, 2 do
    kept[ARGV[i] .. '\n' .. ARGV[i + 1]] = true
  end
  for set, member in string.gmatch(known[2], '([^\n]+)\n([^\n]+)') do
    if not kept[set .. '\n' .. member] then
      redis.call('ZREM', set, member)
    end
  end
end
for i = 4, #ARGV, 2 do
  redis.call('ZADD', ARGV[i], 0, ARGV[i + 1])
end
redis.call('HSET', KEYS[1], 's', ARGV[1], 'd', ARGV[2], 'm', members)
redis.call('PEXPIREAT', KEYS[1], ARGV[3])
return 1
