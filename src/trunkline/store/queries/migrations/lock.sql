-- One migration runs at a time in a database. The number is arbitrary; it only has to be ours.
SELECT pg_advisory_xact_lock(7285406293)
