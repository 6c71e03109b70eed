-- Moves a shard's watermark by compare-and-set. KEYS: the watermarks. ARGV: the shard, the expected watermark (empty:
-- none), the new one. Returns the watermark after that.
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if known ~= ARGV[2] then
  return known
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return ARGV[3]
