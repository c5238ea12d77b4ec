"""The carriers' webhooks: verify, append, acknowledge. The mailbox worker does the rest.

A request comes in through `routes`; `seen` derives the URL that the carrier has, `reading` verifies the request,
`answers` chooses the document for the call.
"""

from trunkline.api.webhooks.answers import FindStream
from trunkline.api.webhooks.public_url import PublicView
from trunkline.api.webhooks.routes import WebhookDeps, WebhookRoutes

__all__ = ["FindStream", "PublicView", "WebhookDeps", "WebhookRoutes"]
