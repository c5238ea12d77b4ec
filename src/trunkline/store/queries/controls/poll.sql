-- What every process asks twice a second, in one row: did a control or a flag change, how far has the database come,
-- and what time is it?
SELECT v.controls AS controls_version, v.flags AS flags_version, c.installation, c.beat, c.beat_at,
       clock_timestamp() AS now
FROM control_versions v CROSS JOIN continuity c
