"""The cluster as a source of pods: `api.py` speaks to its API server, `reflector.py` keeps a copy of the pods,
`source.py` tells the manager what changed, `lease.py` elects the manager, `protection.py` marks busy pods.

Ready-made clients were tried against a real API server through a proxy that breaks: some loop on 410 and lose events,
none has a deadline on a half-open path. What is needed here is little: one list, one watch, one Lease, one patch.
"""
