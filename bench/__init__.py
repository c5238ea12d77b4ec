"""Benchmarks: one module per question. `make bench` runs all of them, `make bench ONLY=name` one.

Every benchmark compares side by side in one run, because absolute figures of a shared machine drift, and ends with one
line of JSON: {"bench", "ours", "peers", "ratio", "goal", "met"}. See `report.py`.
"""
