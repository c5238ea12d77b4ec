"""Valkey, and nothing else. It holds a projection that may be lost at any time; Postgres is the truth.

`keys.py` builds every key, `lua/` holds every script, and each script has one Python twin that calls it.
"""
