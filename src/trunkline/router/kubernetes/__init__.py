"""The cluster as a source of pods: `api.py` speaks to its API server, `reflector.py` keeps a copy of the pods,
`lease.py` elects the manager, `protection.py` annotates busy pods.

Existing clients were tested against a real API server through a faulty proxy: some loop on 410 and lose events, none
has a deadline on a half-open connection. The router needs little: one list, one watch, one Lease, one patch.
"""
