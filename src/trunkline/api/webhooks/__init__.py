"""The carriers' webhooks: verify, append, acknowledge. The mailbox worker does the rest.

A request comes in through `routes`; `reading` derives the URL that the carrier has and verifies the request, `answers`
chooses the document for the call.
"""
