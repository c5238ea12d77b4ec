"""Every call gets a pod of its own.

`pods.py` receives the heartbeats of pods, `allocator.py` gives calls their pods, `streams.py` signs the tokens that
open streams, `routes.py` has the HTTP endpoints. Valkey's scripts decide; the pod itself is the last guard.
"""
