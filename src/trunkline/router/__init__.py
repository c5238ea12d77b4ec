"""Every call gets a pod of its own.

`allocator.py` connects answered calls with agents and gives calls their pods, `pods.py` receives the heartbeats of
pods, `tokens.py` signs the tokens that open streams. Valkey's scripts propose, Postgres decides, and the pod itself is
the last guard. The HTTP endpoints are in `api/router_endpoints.py`.
"""
