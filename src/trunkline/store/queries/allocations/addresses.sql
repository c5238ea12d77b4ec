-- Pods that registered since: where a number that an answer URL names leads to.
SELECT incarnation, name, base_url, ip, port FROM pods WHERE incarnation > $1 ORDER BY incarnation
