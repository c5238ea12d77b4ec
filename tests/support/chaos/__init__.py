"""A machine that tries to break the promises: `python -m tests.support.chaos --seed 7`, or `make chaos`.

`plan` draws what happens from a seed, `machine` starts engines once and a platform for every seed, `load` uses it as
tenants do, `faults` breaks it, `evidence` gathers what carriers, pods and Postgres have on record, and `checkers` judge
by that alone.
"""
