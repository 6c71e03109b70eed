-- Forgets a run, unless it was opened again since. KEYS: the run. ARGV: the log entry up to which it is erased.
local known = redis.call('HMGET', KEYS[1], 's', 'm')
if not known[1] or tonumber(known[1]) > tonumber(ARGV[1]) then
  return 0
end
for set, member in string.gmatch(known[2], '([^\n]+)\n([^\n]+)') do
  redis.call('ZREM', set, member)
end
redis.call('DEL', KEYS[1])
return 1
