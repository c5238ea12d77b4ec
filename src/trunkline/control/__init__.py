"""What steers the platform while it runs: controls, feature flags, alarms.

Postgres holds them; every process has a view that is at most half a second behind (`refresh.py`).

- `controls.py`: what is stopped (pure, in `stops.py`), asked before every grant and every send
- `continuity.py`: was Postgres restored to an earlier moment? Then the kill switch goes on
- `flags.py`: feature flags, through the OpenFeature API (`provider.py`)
- `alarms.py`: every alarm there is; `inputs.py` measures, `evaluation.py` judges, `raising.py` and `webhook.py` say so
- `presence.py`: every process says that it is here and what it has counted
"""
