"""The carriers' webhooks: verify, append, acknowledge. The mailbox worker does the rest.

`routes` verifies a request by the URL that the carrier has, and stores its event; `answers` chooses the document for
the call.
"""
