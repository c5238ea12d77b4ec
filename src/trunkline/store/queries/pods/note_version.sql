-- The first time that this version of the agents is seen; '' is none.
INSERT INTO pod_versions (version) SELECT $1::text WHERE $1 <> '' ON CONFLICT DO NOTHING
