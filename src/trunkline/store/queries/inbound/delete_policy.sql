-- Back to how it is without a decision.
DELETE FROM inbound_policies WHERE number_id = $1
