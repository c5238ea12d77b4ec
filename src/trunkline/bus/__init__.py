"""The only Valkey of the platform. It makes things fast and may be lost at any moment; Postgres is the truth.

`keys.py` builds every key, `lua/` holds every script, and each script has one Python twin that calls it.
"""
