"""What a carrier that refuses, cannot be reached or hangs costs: see `__main__`."""
