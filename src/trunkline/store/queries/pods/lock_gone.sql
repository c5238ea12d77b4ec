-- A pod that is to be removed: the one that is meant ($2 uid, '' for any), and only if it has not spoken for $3 seconds (0: for
-- whatever it said). One that spoke meanwhile, or another one of the same name, stays.
SELECT incarnation FROM pods
WHERE name = $1 AND ($2 = '' OR uid IN ('', $2))
  AND ($3::float8 = 0 OR heard_at < clock_timestamp() - make_interval(secs => $3))
FOR UPDATE
