#!lua
-- Makes numbers, weights, limits and stops what Postgres has. Channels in use stay held: a lowered maximum takes effect as
-- calls end. A stopped flow is not popped and put back; the match leaves it out.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)
-- ARGV[3] JSON: {"numbers": {id: "pool|max|region|account"}, "weights": {merchant: "n"}, "caps": {"m/…" or "c/…/…": "n"},
--               "stops": {"all", "r/…", "m/…", "c/…": "reason"}, "tiers": {merchant: tier of its own},
--               "ungated": {"m/…", "p/…", "c/…": "all" or "few" at a time},
--               "cooling": {number: ms until which it is in a cooldown}}
-- -> the number of values that changed
-- @include keys
-- @include epoch
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local wanted, changed = cjson.decode(ARGV[3]), 0

-- Makes one HASH equal to a table; calls `note` for every field that changed, with the value before.
local function sync(hash, fields, note)
  local before = redis.call('HGETALL', hash)
  for i = 1, #before, 2 do
    if fields[before[i]] == nil then
      redis.call('HDEL', hash, before[i])
      changed = changed + 1
      if note then note(before[i], before[i + 1]) end
    end
  end
  for field, value in pairs(fields) do
    local old = redis.call('HGET', hash, field)
    if old ~= value then
      redis.call('HSET', hash, field, value)
      changed = changed + 1
      if note then note(field, old) end
    end
  end
end

sync(key('numbers'), wanted.numbers, function(number, old)
  local pool, region, account = string.match(old or '', '^([^|]*)|%d+|([^|]*)|(.*)$')
  if pool then
    redis.call('SREM', key('account', account), number)
    redis.call('ZREM', key('free', pool), number)
    redis.call('ZREM', key('free', pool .. '@' .. region), number)
  end
  local is_there, _, _, its = read_number(number)
  if is_there then redis.call('SADD', key('account', its), number) end
  note_free(number)
end)
sync(key('weights'), wanted.weights)
sync(key('caps'), wanted.caps, function(subject) unblock(subject) end)
sync(key('stops'), wanted.stops)
sync(key('tiers'), wanted.tiers)
sync(key('ungated'), wanted.ungated)
-- A cooldown that ends earlier than projected frees its numbers; one that is new here makes them rest.
sync(key('cooling'), wanted.cooling, function(number)
  local till = wanted.cooling[number]
  if till then redis.call('ZADD', key('resting'), till, number) else redis.call('ZREM', key('resting'), number) end
  note_free(number)
end)
if changed > 0 then wake_dialers(KEYS[2]) end
return changed
