-- A projection is only worth something in the run it was written in. The epoch names the server's run id and a number from
-- Postgres: after a restart, a promoted replica or a flush it is missing or names another run, and scripts refuse.
-- A rebuild writes under a number that is not published yet; it is let in as `building`.
-- `asked` is a number, an @ and the run id that the caller's connection was opened to; in a cluster, where nobody knows
-- it, nothing, and it is looked up.
-- @include run_id
local function is_current(epoch_key, asked)
  local known = redis.call('HMGET', epoch_key, 'run_id', 'number', 'building')
  local number, run_id = string.match(asked, '^(%d+)@?(.*)$')
  if run_id == '' then run_id = server_run_id() end
  return known[1] == run_id and (known[2] == number or known[3] == number)
end
local LOST = redis.error_reply('EPOCH the projection of this server is not the one you know')
