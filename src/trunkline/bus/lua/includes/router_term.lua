-- What the manager writes counts only under the newest term of this epoch: a leader that was paused and continued, or
-- that has not noticed that the projection was lost, changes nothing.
local function has_term(id, term)
  return epoch() == id and redis.call('HGET', KEYS[1], 'term') == term
end
