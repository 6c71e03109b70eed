-- Removes members whose runs have left their partition. KEYS: a set of places. ARGV: the range, how many members to look
-- at, and for each partition the place before which its runs have left it. Returns the last member that was looked at
-- if there may be more.
local members = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local gone = {}
for _, member in ipairs(members) do
  -- The shard follows the uuid, and its first digit is its partition.
  local partition = tonumber(string.sub(member, 33, 33), 16)
  local before = ARGV[4 + partition]
  if before and member < before then
    gone[#gone + 1] = member
  end
end
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
end
if #members < tonumber(ARGV[3]) then
  return false
end
return members[#members]
