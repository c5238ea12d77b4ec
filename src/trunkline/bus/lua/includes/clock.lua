-- Postgres decides what is due. A caller that has measured how far its clock is ahead of Valkey's passes that in ms; one
-- that has not passes '' and gets the offset of the last match, so that all scripts share one time.
local function now_by(offset)
  local time = redis.call('TIME')
  if offset == '' then offset = redis.call('GET', key('offset')) or '0' end
  return time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(offset)
end
