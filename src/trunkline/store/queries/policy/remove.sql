-- A layer that says nothing any more.
DELETE FROM policies WHERE scope = $1 AND subject = $2 RETURNING scope
