"""The platform's own job types. `catalogue` lists them all with their handlers."""
