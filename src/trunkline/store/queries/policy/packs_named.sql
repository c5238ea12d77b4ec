-- Every pack that some layer of policy names.
SELECT DISTINCT named.pack
FROM policies AS p, jsonb_array_elements_text(CASE jsonb_typeof(p.policy -> 'packs') WHEN 'array' THEN p.policy -> 'packs' END)
    AS named (pack)
ORDER BY 1
