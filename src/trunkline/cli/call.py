"""`trunkline call +14155550123`: one call, now, followed until it ends."""

import asyncio
from typing import Annotated, Any
from uuid import uuid4

import typer

from trunkline.cli.console import out
from trunkline.cli.control import LOCAL_URL, AsJson, RemoteContext, Url, api_path, connect, payload_of
from trunkline.cli.leads import Payload
from trunkline.cli.numbers import DEFAULT
from trunkline.client.transport import Transport

POLL_S = 0.5
# A lead that is dialled at once needs no explanation. One that waits for an agent has passed no gate yet, so it has no
# refusal to show.
EXPLAIN_EVERY = 4


def call(
    ctx: RemoteContext,
    phone: Annotated[str, typer.Argument(help="Whom to call, with + and the country code.")],
    merchant: Annotated[str, typer.Option(help="For whom.")] = DEFAULT,
    pool: Annotated[str, typer.Option(help="From a number of this pool. Left out: the merchant's.")] = "",
    payload: Payload = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the call until it ends.")] = True,
    url: Url = LOCAL_URL,
    key: Annotated[str, typer.Option(envvar="TRUNKLINE_API_KEY", help="The API key.")] = "",
    as_json: AsJson = False,
) -> None:
    """Call one person now, once, and show what happens."""
    connect(ctx, url, key, as_json)
    body: dict[str, Any] = {
        "request_id": f"call-{uuid4()}",
        "merchant_id": merchant,
        "phone": phone,
        "max_attempts": 1,
        "payload": payload_of(payload) if payload else {},
    }
    if pool:
        body["pool"] = pool
    lead = ctx.obj.ask(lambda api: _place(api, body, wait=wait, quiet=as_json))
    if as_json:
        ctx.obj.show(lead)
    elif lead["status"] == "FINISHED":
        out.print(f"{lead['outcome']}" + (f" ({lead['outcome_reason']})" if lead["outcome_reason"] else ""))
    if wait and lead["outcome"] in _NOT_CALLED:
        raise typer.Exit(1)


# Outcomes of a lead that was never dialled, or whose outcome is unknown.
_NOT_CALLED = frozenset(
    {"PRECHECK_FAILED", "BLACKLISTED", "NUMBER_UNAVAILABLE", "INVALID_PHONE", "NO_CONFIG", "CALL_LIMIT_REACHED",
     "ABORTED", "CARRIER_ERROR", "UNKNOWN"}
)  # fmt: skip


async def _place(api: Transport, body: dict[str, Any], *, wait: bool, quiet: bool) -> dict[str, Any]:
    lead: dict[str, Any] = await api.post(api_path("leads"), body)
    printed: set[tuple[str, str, str]] = set()
    looks = 0
    while wait:
        lead = await api.get(api_path("leads", lead["id"]))
        looks += 1
        if not quiet:
            _print_new(lead, printed)
            if lead["status"] == "BACKLOG" and looks % EXPLAIN_EVERY == 0:
                answer = (await api.get(api_path("leads", lead["id"], "why")))["answer"]
                if ("", "why", answer) not in printed:
                    printed.add(("", "why", answer))
                    out.print(answer)
        if lead["status"] == "FINISHED":
            break
        await asyncio.sleep(POLL_S)
    return lead


# The timeline events to show while waiting for a call.
_LIFE = frozenset(
    {"created", "intended", "accepted", "ringing", "answered", "ended", "rejected", "absent", "unknown", "reported",
     "finished", "reopened"}
)  # fmt: skip


def _print_new(lead: dict[str, Any], printed: set[tuple[str, str, str]]) -> None:
    """Print the new timeline events and refusals."""
    for happened in lead["timeline"]:
        line = (happened["attempt_id"] or happened["at"], happened["source"], happened["what"])
        if line not in printed and happened["what"] in _LIFE:
            printed.add(line)
            reason = f"  {happened['reason']}" if happened["reason"] else ""
            out.print(f"{happened['at'][11:19]}  {happened['what']}{reason}")
    for decision in lead["decisions"]:
        line = ("", "decision", decision["reason"])
        if line not in printed:
            printed.add(line)
            out.print(f"waits: {decision['reason']}  (`trunkline leads why {lead['id']}` says more)")
