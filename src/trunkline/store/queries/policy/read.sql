-- Some layers of policies.
SELECT p.scope, p.subject, p.policy, p.version, p.updated_at, p.updated_by
FROM policies AS p
JOIN unnest($1::text[], $2::text[]) AS k (scope, subject) ON k.scope = p.scope AND k.subject = p.subject
