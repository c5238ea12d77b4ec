-- Every layer of calling policy that holds for a campaign, from the platform's to its own, as documents.
SELECT ARRAY[(SELECT policy::text FROM policies WHERE scope = 'platform' AND subject = ''),
             (SELECT policy::text FROM policies WHERE scope = 'reseller' AND subject = $1),
             (SELECT policy::text FROM policies WHERE scope = 'merchant' AND subject = $2),
             (SELECT policy::text FROM policies WHERE scope = 'campaign' AND subject = $2 || '/' || $3::uuid)]
