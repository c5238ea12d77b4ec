"""HTTP: bodies of requests, and outgoing requests with two policies. To a carrier: sent once, and it is known whether a
byte left (`carrier_session`). To hosts of tenants and operators: public addresses only (`outgoing`)."""
