"""The way in: accounts at carriers, whose webhooks tell what became of calls, and the inbox that keeps them."""

import asyncio

from trunkline.api.webhooks.late_events import LateEvents
from trunkline.dispatch.account_look import AccountLook
from trunkline.dispatch.accounts import AccountDesk, AccountsRefresh
from trunkline.mailbox.inbox import Inbox
from trunkline.parts.ground import Ground
from trunkline.telemetry import get_logger
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.directory import CarrierDirectory
from trunkline.telephony.environment import accounts_of
from trunkline.telephony.vault import Vault

log = get_logger(__name__)

# A batch of appends takes milliseconds.
INBOX_CLOSE_S = 5.0


class WayIn:
    def __init__(self, ground: Ground):
        self.callback_keys = CallbackKeys.from_secrets(ground.secrets)
        self.carriers = CarrierDirectory(accounts_of(ground.settings, self.callback_keys))
        self.accounts = AccountDesk(
            ground.database,
            self.carriers,
            Vault.from_secrets(ground.secrets),
            self.callback_keys,
            ground.public_base_url,
            ground.settings.carrier.request_timeout_s,
        )
        self.accounts_refresh = AccountsRefresh(self.accounts)
        self.look = AccountLook(self.accounts.refresh)
        self.inbox = Inbox(ground.database, ground.bus)
        self.late_events = LateEvents(self.inbox.append_all)

    async def close_inbox(self) -> None:
        """What it has taken is written; a Postgres that hangs does not keep the process from ending."""
        try:
            async with asyncio.timeout(INBOX_CLOSE_S):
                await self.late_events.aclose()
                await self.inbox.aclose()
        except TimeoutError:
            log.warning("platform.inbox_not_written")
