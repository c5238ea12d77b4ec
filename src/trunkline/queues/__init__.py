"""What jobs and mailboxes have in common: the object of an application, and how a worker follows Postgres' clock.

The base of their loops is `loops.base`, that of their handlers `handlers`. Claims, leases and retries differ in more
than they share (docs/decisions/0058-one-base-for-queues.md).
"""
