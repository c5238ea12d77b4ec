-- The manager's writes are valid only under the newest term of this epoch: a leader that was paused and continued, or that
-- has not noticed the loss of the projection, changes nothing.
local function has_term(id, term)
  return epoch() == id and redis.call('HGET', KEYS[1], 'term') == term
end
