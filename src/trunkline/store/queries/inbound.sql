-- name: delete_policy
-- Back to the default policy.
DELETE FROM inbound_policies WHERE number_id = $1

-- name: get_policy
-- The policy of a number for inbound calls.
SELECT * FROM inbound_policies WHERE number_id = $1

-- name: known
-- The attempt of a call whose webhook the carrier has repeated.
SELECT id, merchant_id, state, end_reason FROM attempts WHERE carrier = $1 AND carrier_call_id = $2

-- name: lock_number
-- The number that is called, locked against dials and other calls until the commit, with its owner's policy. Dials lock it FOR
-- SHARE: the second one waits, and counts afterwards. Nothing may be counted here: this statement's snapshot is older than its
-- lock.
SELECT n.id, n.status, n.max_channels, coalesce(p.admits, 'everybody') AS admits,
       coalesce(p.whitelist, '{}') AS whitelist, coalesce(p.otherwise, 'reject') AS otherwise, p.message, p.redirect_to,
       m.id AS merchant_id, m.reseller_id
FROM numbers AS n
LEFT JOIN inbound_policies AS p ON p.number_id = n.id
LEFT JOIN merchants AS m ON m.id = coalesce(n.merchant_id, p.merchant_id)
WHERE n.e164 = $1 AND n.carrier = $2 AND n.account = $3
FOR NO KEY UPDATE OF n

-- name: put_policy
-- Set the policy.
INSERT INTO inbound_policies (number_id, admits, whitelist, merchant_id, otherwise, message, redirect_to)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (number_id) DO UPDATE SET
    admits = excluded.admits, whitelist = excluded.whitelist, merchant_id = excluded.merchant_id,
    otherwise = excluded.otherwise, message = excluded.message, redirect_to = excluded.redirect_to,
    updated_at = clock_timestamp()
RETURNING *

-- name: refuse
-- A refused inbound call, and why. It never had a channel.
INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, holds_channel, carrier_call_id, dialer, ringing_at, ended_at,
                      end_reason, next_check_at)
VALUES ($1, 'inbound', 1, $2, $3, $4, NULL, $5, $6, $7, $8, 'rejected', false, $9, $10, clock_timestamp(),
        clock_timestamp(), $11, NULL)
ON CONFLICT DO NOTHING

-- name: take
-- An inbound call takes the lowest free channel, under the number's lock and the same index as every dial. Calls above a
-- lowered maximum count too. No row: no channel is free, or the call has an attempt already.
INSERT INTO attempts (id, direction, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier, account,
                      to_phone, from_phone, state, carrier_call_id, dialer, ringing_at, answered_at)
SELECT $1, 'inbound', 1, $2, $3, $4, free.no, $5, $6, $7, $8, 'answered', $9, $10, clock_timestamp(), clock_timestamp()
FROM (SELECT channel.no
      FROM generate_series(1, $11::int) AS channel (no)
      WHERE NOT EXISTS (SELECT FROM attempts AS a
                        WHERE a.number_id = $4 AND a.channel_no = channel.no AND a.holds_channel)
      ORDER BY channel.no LIMIT 1) AS free
WHERE (SELECT count(*) FROM attempts AS a WHERE a.number_id = $4 AND a.holds_channel) < $11::int
ON CONFLICT DO NOTHING
RETURNING id, channel_no
