-- The clock was set back: who was heard in the future was heard now, or a silent pod would not be found until then.
UPDATE pods SET heard_at = clock_timestamp() WHERE heard_at > clock_timestamp() + interval '1 second'
