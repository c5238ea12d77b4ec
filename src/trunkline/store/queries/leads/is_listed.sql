-- Whether somebody has listed this person as not to be called: the merchant, its reseller, or the platform.
SELECT EXISTS (
    SELECT FROM do_not_call AS d
    WHERE d.phone = $1 AND (d.expires_at IS NULL OR d.expires_at > now())
      AND (d.reseller_id IS NULL OR (d.reseller_id = $2 AND (d.merchant_id IS NULL OR d.merchant_id = $3))))
