"""The shape of every resource, once: what the store returns, the API documents and serialises, and the client decodes.

`Pool` is a resource, `NewPool` the body that creates one, `PoolChange` the body that changes one. All are plain
dataclasses that need nothing but the standard library, since the client installs without the platform.
"""
