-- The keys of a tier's pool. A merchant's own tier has other names.
local function pool_of(tier)
  local merchant = string.match(tier, '^merchant:(.+)$')
  local root = key(merchant and 'merchant' or 'pool', merchant or tier)
  return {
    tier = tier,
    source = merchant and tier or 'pool:' .. tier,
    available = root .. (merchant and ':pods' or ':available'),
    assigned = root .. ':assigned',
    order = root .. ':order',
    waiting = root .. ':waiting',
    waiting_merchants = root .. ':waiting:merchants',
    yielded = root .. ':yielded',
    kept = root .. ':kept',
    silent = root .. ':silent',
    leaving = root .. ':leaving',
  }
end

