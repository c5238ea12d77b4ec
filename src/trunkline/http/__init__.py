"""HTTP: bodies of requests, and outgoing requests with two policies. To a carrier: sent once, and it is known whether a
byte left (`connections`). To hosts of tenants and operators: public addresses only (`outgoing`)."""
