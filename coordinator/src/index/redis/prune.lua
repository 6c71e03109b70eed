-- Forgets the names of sets, and of tools, without members. KEYS: the names of sets, the names of tools.
for _, set in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if redis.call('EXISTS', set) == 0 then
    redis.call('SREM', KEYS[1], set)
  end
end
for _, tool in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  if redis.call('EXISTS', 'ty:calls:tool:' .. tool) == 0 then
    redis.call('SREM', KEYS[2], tool)
  end
end
return 1
