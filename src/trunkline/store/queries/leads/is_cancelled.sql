-- Has somebody asked for the end of a lead that is being called?
SELECT cancel_requested_at IS NOT NULL FROM leads WHERE id = $1
