"""Everything that runs over and over. A loop is one class with `run_once`; tests call that directly."""
