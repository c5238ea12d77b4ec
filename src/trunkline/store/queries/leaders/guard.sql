-- Is this still the term? The row is held until the commit, so no other leader can begin in between.
SELECT true FROM leaders WHERE name = $1 AND holder = $2 AND term = $3 FOR SHARE
