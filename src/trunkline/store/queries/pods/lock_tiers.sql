-- Pods that come at the same time fill the tiers one after the other, or all of them would go to the same one.
SELECT pg_advisory_xact_lock(hashtextextended('pods.tiers', 0))
