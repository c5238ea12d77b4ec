-- A lead's record: version, place (s scheduled, w waiting, g granted), flow, priority, due, closes, next pool, move
-- after, move at, region ('' unless its pool prefers numbers of the callee's region), counts from, lined up at.
-- `closes` is the end of its calling window. A lead may move once to a next pool ('': never) after it has waited `move
-- after` ms for a channel of its own: `move at` is set while it waits, else 0.
-- `counts from`: its lateness counts from then, its due time or the end of the last wait that a refusal imposed.
-- `lined up at`: since then it waits for its turn. Records of older versions have neither.
local function read_lead(id)
  local text = redis.call('HGET', key('leads'), id)
  if not text then return nil end
  local lead = {id = id}
  local version, place, flow, priority, due, closes, next_pool, move_after, move_at, region, counts_from, lined_up_at =
    string.match(text, '^(%d+)|(%a)|([^|]*)|(%d+)|(%d+)|(%d+)|([^|]*)|(%d+)|(%d+)|([^|]*)|?(%d*)|?(%d*)$')
  lead.version, lead.place, lead.flow, lead.priority = tonumber(version), place, flow, tonumber(priority)
  lead.due, lead.closes, lead.next_pool, lead.move_at = tonumber(due), tonumber(closes), next_pool, tonumber(move_at)
  lead.move_after, lead.region = tonumber(move_after), region
  lead.counts_from, lead.lined_up_at = tonumber(counts_from) or lead.due, tonumber(lined_up_at) or 0
  return lead
end

local function write_lead(lead)
  redis.call('HSET', key('leads'), lead.id, string.format('%d|%s|%s|%d|%.0f|%.0f|%s|%.0f|%.0f|%s|%.0f|%.0f', lead.version,
    lead.place, lead.flow, lead.priority, lead.due, lead.closes, lead.next_pool, lead.move_after, lead.move_at, lead.region,
    lead.counts_from, lead.lined_up_at))
end

-- Within a flow: priority, then due. 99 × 1e13 + a time in ms is exact in a double.
local function rank(lead) return lead.priority * 1e13 + lead.due end

-- `pool/reseller/merchant/campaign`
local function parts_of(flow)
  local pool, reseller, merchant, campaign = string.match(flow, '^([^/]*)/([^/]*)/([^/]*)/([^/]*)$')
  return {pool = pool, reseller = reseller, merchant = merchant, campaign = campaign}
end

-- Campaign ids are unique per merchant: a stop or a limit applies to the campaign of one merchant.
local function campaign_of(parts) return 'c/' .. parts.merchant .. '/' .. parts.campaign end
