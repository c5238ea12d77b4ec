"""Lists of the plain resources. Their columns are the fields of the shapes that the API documents, with the same
sentences."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trunkline.console.page_request import Page, PageRequest, Shown
from trunkline.schema.accounts import Account
from trunkline.schema.do_not_call import DoNotCallEntry
from trunkline.schema.keys import ApiKey
from trunkline.schema.mailbox_kinds import MailboxKind
from trunkline.schema.numbers import Pool
from trunkline.schema.tenants import Merchant, Reseller
from trunkline.schema.webhook_endpoints import WebhookEndpoint

# By their name in the API. Numbers and flags have pages of their own, with more than a table.
LISTS: Mapping[str, type[Any]] = {
    "resellers": Reseller,
    "merchants": Merchant,
    "pools": Pool,
    "accounts": Account,
    "keys": ApiKey,
    "do-not-call": DoNotCallEntry,
    "webhook-endpoints": WebhookEndpoint,
    "mailbox-kinds": MailboxKind,
}


def page_of(name: str) -> Page:
    columns = {each.name: each.metadata["description"] for each in fields(LISTS[name])}

    async def show(visit: PageRequest) -> Shown:
        found = await visit.listed(f"/{name}")
        return Shown("resources.html", found | {"name": name, "names": list(LISTS), "columns": columns})

    return show
