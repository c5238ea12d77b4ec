"""HTTP that is no carrier's: bodies that come in, and requests to hosts that tenants or operators name."""
