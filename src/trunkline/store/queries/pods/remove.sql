-- A pod that is gone for good: one that comes back under the same name gets a tier as a new one does.
DELETE FROM pods WHERE name = $1
