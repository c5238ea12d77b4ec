#!lua
-- Gives back refused grants. The channel is free again, the flow is refunded the cost of the grant and keeps its position,
-- and the reason blocks its cause, so that nothing loops:
--   again    the lead is due at the given time (now: it keeps its position)
--   forget   this version of the lead is not to be called; the loader adds the lead again if Postgres has a newer one
--   behind   the person is being called: the lead waits until that attempt ends, or until the given time
--   park     a limit of its merchant or campaign: the whole flow waits until the given time, or for the subject's release
--   rest     a pace or a cooldown of its number: the number waits until the given time
--   rest_all a pace or a cooldown of its account: every number of the account waits
-- A grant that is no longer held changes nothing: it was given back before.
--
-- KEYS[1] epoch  KEYS[2] dialer_wakeups
-- @keys ARGV[7..] by 5: behind blocked
-- ARGV[1] key prefix  ARGV[2] epoch (number@run id)  ARGV[3] offset of Postgres's clock in ms ('': the stored one)
-- ARGV[4..] records of five: attempt, what, until in ms (0: now; negative: that many from now), subject (the attempt it is
-- behind, `any` for the end of any call, `cooldown` for a rest that Postgres may end earlier, or ''), 1 if the lead has to
-- wait until then, 0 if the platform failed: its lateness keeps counting
-- -> the number of grants that were given back
-- @include keys
-- @include epoch
-- @include clock
-- @include leads
-- @include flows
-- @include channels
if not is_current(KEYS[1], ARGV[2]) then return LOST end
local now = now_by(ARGV[3])
local returned, resting_accounts = 0, {}

-- The flow got no call for the charge. Its tag is active, or the last finish of an idle flow; one that virtual time has
-- passed is deleted, and the charge with it.
local function refund(held)
  if held.flow == '' then return end
  local pool = parts_of(held.flow).pool
  for _, set in ipairs({key('active', pool), key('finish', pool)}) do
    if redis.call('ZSCORE', set, held.flow) then
      redis.call('ZINCRBY', set, -tonumber(held.cost), held.flow)
      return
    end
  end
end

local function rest(number, till, subject)
  redis.call('ZADD', key('resting'), till, number)
  if subject == 'cooldown' then redis.call('HSET', key('cooling'), number, string.format('%.0f', till)) end
  note_free(number)
end

local function put_back(lead, held, what, till, subject, is_wait)
  if what == 'forget' then
    forget(lead)
    return
  end
  if is_wait and till > lead.counts_from then lead.counts_from = till end
  if (what == 'again' or what == 'behind') and till > lead.due then lead.due = till end
  if what == 'behind' and redis.call('HEXISTS', key('holders'), subject) == 1 then
    redis.call('SADD', key('behind', subject), lead.id)
  end
  place(lead, now)
  if what == 'park' then park(held.flow, till, subject ~= '' and subject or nil) end
end

for i = 4, #ARGV, 5 do
  local what, till, subject = ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  if till < 0 then till = now - till end
  local held = release(ARGV[i])
  if held then
    returned = returned + 1
    if what == 'rest' then rest(held.number, till, subject) end
    if what == 'rest_all' then
      local _, _, _, account = read_number(held.number)
      local before = resting_accounts[account] or {till = 0}
      resting_accounts[account] = {till = math.max(before.till, till), subject = subject}
    end
    -- A newer version may have been scheduled meanwhile; only this grant's version may be moved.
    local lead = held.lead ~= '' and read_lead(held.lead)
    if lead and lead.place == 'g' and lead.version == tonumber(held.version) then
      put_back(lead, held, what, till, subject, ARGV[i + 4] == '1')
    end
    refund(held)
  end
end
-- Once per account, after all grants are given back.
for account, its in pairs(resting_accounts) do
  for _, number in ipairs(redis.call('SMEMBERS', key('account', account))) do rest(number, its.till, its.subject) end
end
if returned > 0 then wake_dialers(KEYS[2]) end
return returned
