-- A projection is valid only in the server run that it was written in. The epoch has the server's run id and a number from
-- Postgres: after a restart, a promoted replica or a flush it is missing or has another run id, and scripts refuse.
-- A rebuild writes under a number that is not published yet; it is admitted as `building`.
-- `expected` is a number, an @ and the run id that the caller's connection was opened to; in a cluster, where the caller
-- has none, the script looks it up.
-- @include run_id
local function is_current(epoch_key, expected)
  local known = redis.call('HMGET', epoch_key, 'run_id', 'number', 'building')
  local number, run_id = string.match(expected, '^(%d+)@?(.*)$')
  if run_id == '' then run_id = server_run_id() end
  return known[1] == run_id and (known[2] == number or known[3] == number)
end
local LOST = redis.error_reply('EPOCH the projection of this server is not the one you know')
