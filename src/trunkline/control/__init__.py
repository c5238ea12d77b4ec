"""Runtime control of the platform: controls, feature flags, alarms.

Postgres stores them; every process has a view that is at most half a second behind (`refresh.py`).

- `controls.py`: what is stopped, checked before every grant and every send
- `continuity.py`: detects that Postgres was restored to an earlier state; then the kill switch goes on
- `flags.py`: feature flags, through the OpenFeature API
- `alarms.py`: the definitions of alarms; `inputs.py` measures, `alarm_loop.py` evaluates, `raising.py` raises,
  `notifier.py` notifies
- `presence.py`: every process reports that it is alive, and its counters
"""
