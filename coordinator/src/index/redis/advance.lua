-- Moves a shard's mark. KEYS: the marks. ARGV: the shard, where the mark must stand (empty: nowhere), where it goes.
-- Gives where it stands then.
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if known ~= ARGV[2] then
  return known
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return ARGV[3]
