-- A call that surfaced is live, so it has a line, and somebody looks at it until it ends. It gets the lowest line that
-- nobody holds, be it above the maximum: the number then takes no further call before it has room. $2 is a line that
-- nobody else asks for, for when others are quicker again and again; NULL: the lowest.
UPDATE attempts AS a
SET holds_channel = true, next_check_at = clock_timestamp(),
    channel_no = coalesce($2::int, (SELECT min(line.no)
                  FROM generate_series(1, 1 + (SELECT count(*) FROM attempts AS h
                                               WHERE h.number_id = a.number_id AND h.holds_channel)) AS line (no)
                  WHERE NOT EXISTS (SELECT FROM attempts AS h
                                    WHERE h.number_id = a.number_id AND h.channel_no = line.no AND h.holds_channel)))
WHERE a.id = $1 AND NOT a.holds_channel
