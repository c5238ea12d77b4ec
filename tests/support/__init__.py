"""What tests and benchmarks stand on: worlds, faults and judges, in folders named as those of `src/trunkline`."""
