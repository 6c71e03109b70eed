-- Keeps the later of two moments. KEYS: where it is. ARGV: another moment.
local known = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) > known then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
