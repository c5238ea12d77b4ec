"""Every call gets a pod of its own.

`pods.py` hears the heartbeats of pods, `allocator.py` gives calls their pods, `streams.py` signs what opens a
stream, `routes.py` is the HTTP face. Valkey's scripts decide; the pod itself is the last guard.
"""
