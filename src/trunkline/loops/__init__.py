"""The base of loops. Each loop is one class with `run_once`, in the package of its duty; tests call that directly."""
