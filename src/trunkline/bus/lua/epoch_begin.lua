#!lua
-- Begins a rebuild under a new epoch number, or renews its mark. It touches nothing that is live: a number has keys of its
-- own. Refused if this run of the server already has a published epoch as new, a newer rebuild under way, or any rebuild
-- with a recent mark: two that restarted each other would never end.
--
-- KEYS[1] epoch
-- ARGV[1] epoch number  ARGV[2] ms of silence after which a rebuild counts as dead
-- -> 1 begun or going on, 0 refused
-- @include run_id
local run_id = server_run_id()
local known = redis.call('HMGET', KEYS[1], 'run_id', 'number', 'building', 'seen_at')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local number = tonumber(ARGV[1])
if known[1] == run_id then
  local building = tonumber(known[3] or '0')
  local is_alive = now - tonumber(known[4] or '0') < tonumber(ARGV[2])
  if tonumber(known[2] or '0') >= number or building > number then return 0 end
  if building > 0 and building < number and is_alive then return 0 end
else
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'run_id', run_id, 'building', ARGV[1], 'seen_at', string.format('%.0f', now))
return 1
