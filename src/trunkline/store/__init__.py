"""The only SQL of the platform. One query, one named block of its area's file in `queries/`, one function that runs it.

Functions take a connection, so that the caller decides what is one transaction:

    async with database.transaction() as tx:
        await attempts.move(tx, …)
        await leads.finish(tx, …)
"""
