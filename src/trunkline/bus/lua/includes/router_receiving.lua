-- Every router marks every second that it receives heartbeats. After a gap (no router, no Valkey) every pod gets its full
-- time again, or one outage would silence them all; likewise when the clock was set back, or no pod would be found silent
-- until it has caught up. Returns for how many ms heartbeats were received without a gap.
local function mark_receiving(gap_ms)
  local mark = key('hearing')
  local since, ran = unpack(redis.call('HMGET', mark, 'since', 'ran'))
  since, ran = tonumber(since or now_ms), tonumber(ran or '0')
  if now_ms - ran > gap_ms or ran > now_ms + 1000 or since > now_ms then since = now_ms end
  if ran > now_ms + 1000 then
    local ahead = redis.call('ZRANGE', key('heartbeats'), '(' .. whole(now_ms), '+inf', 'BYSCORE', 'LIMIT', 0, 10000)
    for _, name in ipairs(ahead) do redis.call('ZADD', key('heartbeats'), whole(now_ms), name) end
  end
  redis.call('HSET', mark, 'since', whole(since), 'ran', whole(now_ms))
  return now_ms - since
end
