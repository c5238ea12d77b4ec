-- The moment from which jobs of this transaction are due.
SELECT now()
