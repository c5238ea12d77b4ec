"""The carriers' webhooks: verify, append, acknowledge. The work follows in the mailbox.

A request comes in through `routes`; `seen` says which URL the carrier was given, `reading` whom to believe, `answers`
what the carrier shall do with the call.
"""

from trunkline.api.webhooks.answers import FindStream
from trunkline.api.webhooks.routes import WebhookDeps, WebhookRoutes
from trunkline.api.webhooks.seen import PublicView

__all__ = ["FindStream", "PublicView", "WebhookDeps", "WebhookRoutes"]
