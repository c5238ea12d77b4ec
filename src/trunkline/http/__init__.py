"""HTTP apart from carriers: bodies of requests, and outgoing requests to hosts of tenants and operators."""
