-- Postgres decides what is due. Whoever has measured how far its clock is ahead of this one says so in ms; whoever has not
-- says '' and gets what the last match was told, so that all scripts have one time.
local function now_by(offset)
  local time = redis.call('TIME')
  if offset == '' then offset = redis.call('GET', key('offset')) or '0' end
  return time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(offset)
end
