"""Mailboxes: the backlog of each kind, stuck and dead ones, and their replay."""

from typing import Any

from trunkline.console.api_client import ApiRefused, segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back
from trunkline.states import MailboxStatus
from trunkline.store.mailbox_admin import COUNT_MAX

PAGE = 50
STUCK_SHOWN = 20


async def show(visit: PageRequest) -> Shown:
    summary = (await visit.api.get("/mailboxes"))["items"]
    stuck = (await visit.api.get("/mailboxes/stuck", {"limit": STUCK_SHOWN}))["items"]
    dead = [each["kind"] for each in summary if each["status"] == MailboxStatus.DEAD]
    letters = [await _of_kind(visit, kind, status="dead", limit=STUCK_SHOWN) for kind in dead]
    return Shown(
        "mailboxes.html",
        {
            "summary": summary,
            "count_max": COUNT_MAX,
            "stuck": stuck,
            "dead": [mailbox for page in letters for mailbox in page["items"]],
            "dead_kinds": dead,
            "may_act": visit.may(),
        },
    )


async def show_kind(visit: PageRequest) -> Shown:
    status = visit.given("status")
    found = await _of_kind(visit, visit.part("kind"), status=status, cursor=visit.given("cursor"), limit=PAGE)
    return Shown(
        "mailbox_kind.html",
        {
            "kind": visit.part("kind"),
            "mailboxes": found["items"],
            "next_cursor": found["next_cursor"],
            "status": status,
            "statuses": [each.value for each in MailboxStatus],
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    mailbox = await visit.api.get(_path(visit))
    events = await visit.api.get(f"{_path(visit)}/events", {"limit": PAGE, "cursor": visit.given("cursor")})
    return Shown(
        "mailbox.html",
        {
            "mailbox": mailbox,
            "events": events["items"],
            "next_cursor": events["next_cursor"],
            "here": _here(visit),
            "may_act": visit.may(),
        },
    )


async def replay_kind(visit: PageRequest) -> ActionDone:
    kind = visit.part("kind")
    result = await visit.api.post(f"/mailboxes/{segment(kind)}/replay", _reason(visit))
    return ActionDone(f"{result['replayed']} mailboxes are queued again.", at("/mailboxes"))


async def replay(visit: PageRequest) -> ActionDone:
    """The dead mailbox; or one of its events that was set aside."""
    body = _reason(visit)
    if seq := visit.form.get("seq"):
        body["seq"] = _number(seq)
    await visit.api.post(f"{_path(visit)}/replay", body)
    return ActionDone("The mailbox is queued again.", back(visit, "/mailboxes"))


async def set_aside(visit: PageRequest) -> ActionDone:
    body = _reason(visit) | {"seq": _number(visit.form.get("seq", ""))}
    await visit.api.post(f"{_path(visit)}/set-aside", body)
    return ActionDone("The mailbox goes on without this event.", back(visit, "/mailboxes"))


async def _of_kind(visit: PageRequest, kind: str, **query: object) -> dict[str, Any]:
    found: dict[str, Any] = await visit.api.get(f"/mailboxes/{segment(kind)}", query)
    return found


def _reason(visit: PageRequest) -> dict[str, object]:
    return {"reason": visit.form.get("reason", "")}


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ApiRefused(422, "invalid_request", "Name the event by its number.")
    return int(text)


def _path(visit: PageRequest) -> str:
    return f"/mailboxes/{segment(visit.part('kind'))}/{segment(visit.part('key'))}"


def _here(visit: PageRequest) -> str:
    return at(f"/mailboxes/{segment(visit.part('kind'))}/{segment(visit.part('key'))}")
