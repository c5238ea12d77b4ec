-- Region affinity: a pool may prefer numbers of the callee's region.

-- Where a phone is, as far as its first digits tell: the country, and in North America the area.
CREATE FUNCTION phone_region(phone text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- The longest match counts, so three digits must say that they are not one or two.
    SELECT substring(phone FROM '^\+(?:1\d{3}|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]'
                                '|(?!1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58])\d{3})')
$$;

ALTER TABLE pools ADD COLUMN region_affinity boolean NOT NULL DEFAULT false;
