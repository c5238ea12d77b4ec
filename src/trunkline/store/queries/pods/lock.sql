-- One pod, held until the transaction ends: two requests of one pod register it once.
SELECT name, incarnation, tier, calls_max, boot_id, past_boots, uid, past_uid, sequence FROM pods WHERE name = $1 FOR NO KEY UPDATE
