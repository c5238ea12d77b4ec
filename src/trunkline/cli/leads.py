"""`trunkline leads`: take in, find, change, abort and reopen leads, over the API of a running platform.

trunkline leads create --merchant acme-store --phone +14155550123 --request-id order-4711
trunkline leads upload people.csv
trunkline leads why 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline leads abort --merchant acme-store --reason "sold out"
trunkline leads abort --merchant acme-store --request-ids called-elsewhere.txt --reason "called elsewhere"
trunkline leads reopen --outcome NO_AGENT --since 09:00 --reason "agents were away"
"""

import re
from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import uuid4

import typer

from trunkline.cli.console import out
from trunkline.cli.control import (
    Limit,
    Remote,
    RemoteContext,
    api_path,
    given,
    options,
    payload_of,
    remote_group,
)
from trunkline.cli.uploads import Atomic, File, Form, upload_file
from trunkline.client.leads import UPLOAD_TIMEOUT_S
from trunkline.console.labels import money
from trunkline.settings.values import parse_duration_s
from trunkline.states import LeadStatus

app = remote_group("Create, find, change, abort and reopen leads.")

LeadId = Annotated[str, typer.Argument(help="The id of a lead.")]
Merchant = Annotated[str, typer.Option("--merchant", help="Of this merchant.")]
Campaign = Annotated[str, typer.Option("--campaign", help="Of this campaign.")]
Phone = Annotated[str, typer.Option(help="To this phone, with its country code.")]
Reason = Annotated[str, typer.Option(help="The reason, for the outcome and the audit log.")]
Payload = Annotated[str, typer.Option(help='What the agent should know, as JSON: {"order": "4711"}.')]

# The limit of one request.
REQUESTS_MAX = 1000
_ROW = (
    "id", "request_id", "merchant_id", "phone", "status", "outcome", "due_at", "attempt_count", "priority", "pool",
)  # fmt: skip
_ATTEMPT = (
    "attempt_no", "state", "carrier", "from_phone", "due_at", "waited_s", "sent_at", "late_s", "answered_at",
    "ended_at", "end_reason", "agent", "cost", "carrier_cost", "carrier_call_id",
)  # fmt: skip
_HAPPENING = ("at", "clock", "attempt_no", "source", "what", "reason", "actor")
_ENTRY = ("id", "phone", "merchant_id", "reason", "created_by")
_CHECK = ("gate", "open", "detail", "set_by", "until")


@app.command()
def create(
    ctx: RemoteContext,
    phone: Annotated[str, typer.Option(help="Whom to call, best as E.164.")] = "",
    merchant_id: Merchant = "",
    request_id: Annotated[str, typer.Option(help="Your own id of the request. Left out: a new one.")] = "",
    payload: Payload = "",
    scheduled_at: Annotated[
        str, typer.Option("--at", help="When, for example 2030-05-01T09:30:00+02:00. Left out: now.")
    ] = "",
    expires_at: Annotated[
        str,
        typer.Option(
            "--until", help="The time from which the lead is not called any more. Left out: no such time."
        ),
    ] = "",
    timezone: Annotated[
        str, typer.Option(help="The time zone of the callee, for example Asia/Kolkata.")
    ] = "",
    priority: Annotated[int | None, typer.Option(min=1, max=99, help="1 is called first.")] = None,
    campaign_id: Campaign = "",
    pool: Annotated[str, typer.Option(help="The number pool to dial from.")] = "",
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=20, help="The maximum number of attempts.")
    ] = None,
    reporting_webhook_url: Annotated[str, typer.Option("--webhook", help="Where to report the result.")] = "",
) -> None:
    """Create one lead. A repeated request id is the same lead."""
    body = {"request_id": str(uuid4())} | options(ctx) | given(payload=payload_of(payload))
    ctx.obj.post(_ROW, "leads", body=body)


@app.command("list")
def list_leads(
    ctx: RemoteContext,
    status: Annotated[LeadStatus | None, typer.Option(help="Only with this status.")] = None,
    merchant_id: Merchant = "",
    campaign_id: Campaign = "",
    phone: Phone = "",
    request_id: Annotated[str, typer.Option(help="The one with this request id.")] = "",
    limit: Limit = 50,
) -> None:
    """Leads, newest first."""
    ctx.obj.get(_ROW, "leads", query=options(ctx))


@app.command()
def show(ctx: RemoteContext, lead_id: LeadId) -> None:
    """Everything about one lead: attempts, reasons, and what happened when."""
    remote = ctx.obj
    lead = remote.ask(lambda api: api.get(api_path("leads", lead_id)))
    if remote.as_json:
        remote.show(lead)
        return
    parts = {name: lead.pop(name) for name in ("attempts", "decisions", "timeline")}
    parts["attempts"] = [each | _costs(each) for each in parts["attempts"]]
    attempt_nos = {each["id"]: each["attempt_no"] for each in parts["attempts"]}
    # The carrier's clock is not ours: without the column, times would seem to go backwards.
    parts["timeline"] = [
        each | {"attempt_no": attempt_nos.get(each["attempt_id"])} for each in parts["timeline"]
    ]
    fields = [{"field": name, "value": value} for name, value in lead.items() if value not in (None, {})]
    remote.show({"items": fields}, ("field", "value"))
    for name, columns in (
        ("attempts", _ATTEMPT),
        ("decisions", ("reason", "times", "last_at", "until")),
        ("timeline", _HAPPENING),
    ):
        if parts[name]:
            out.print(name)
            remote.show({"items": parts[name]}, columns)


@app.command()
def never_call(
    ctx: RemoteContext,
    lead_id: LeadId,
    reason: Annotated[str, typer.Option(help="The reason, stored with the entry.")],
) -> None:
    """Put the person of a lead on its merchant's do-not-call list."""
    lead = ctx.obj.ask(lambda api: api.get(api_path("leads", lead_id)))
    body = {"phone": lead["phone"], "merchant_id": lead["merchant_id"], "reason": reason}
    ctx.obj.post(_ENTRY, "do-not-call", body=body)


@app.command()
def why(ctx: RemoteContext, lead_id: LeadId) -> None:
    """Why a lead is not being called, and when it may be."""
    answer = ctx.obj.ask(lambda api: api.get(api_path("leads", lead_id, "why")))
    if not ctx.obj.as_json:
        out.print(answer["answer"])
    ctx.obj.show(answer, _CHECK, answer["checks"])


@app.command()
def change(
    ctx: RemoteContext,
    lead_id: LeadId,
    priority: Annotated[int | None, typer.Option(min=1, max=99)] = None,
    pool: Annotated[str, typer.Option(help="The number pool to dial from.")] = "",
    payload: Payload = "",
    max_attempts: Annotated[int | None, typer.Option(min=1, max=20)] = None,
) -> None:
    """Change a lead that waits."""
    body = options(ctx) | given(payload=payload_of(payload))
    ctx.obj.patch(_ROW, "leads", body.pop("lead_id"), body=body)


@app.command()
def reschedule(
    ctx: RemoteContext,
    lead_id: LeadId,
    at: Annotated[str, typer.Argument(help="When instead, for example 2030-05-01T09:30:00+02:00.")],
) -> None:
    """Call a lead at another time."""
    ctx.obj.patch(_ROW, "leads", lead_id, body={"scheduled_at": at})


@app.command("dispatch-now")
def dispatch_now(ctx: RemoteContext, lead_id: LeadId) -> None:
    """Make a lead due at once. Windows, limits and stops apply as for every call."""
    ctx.obj.post(_ROW, "leads", lead_id, "dispatch-now")


@app.command()
def abort(
    ctx: RemoteContext,
    reason: Reason,
    lead_ids: Annotated[list[str] | None, typer.Argument(help="Ids of leads.")] = None,
    merchant_id: Merchant = "",
    campaign_id: Campaign = "",
    phone: Phone = "",
    request_id: Annotated[
        list[str] | None, typer.Option(help="The one with this request id, of --merchant. May be repeated.")
    ] = None,
    request_ids: Annotated[
        typer.FileText | None, typer.Option(help="A file of request ids, one in each line; - is the input.")
    ] = None,
    hang_up: Annotated[bool, typer.Option("--hang-up", help="Hang up the live calls.")] = False,
) -> None:
    """Abort leads by id, or all that match a filter. A lead that is being called ends with its call."""
    remote = ctx.obj
    body = {name: value for name, value in options(ctx).items() if name not in ("request_id", "request_ids")}
    if request_id or request_ids is not None:
        named = [*(request_id or []), *(line.strip() for line in request_ids or () if line.strip())]
        done = Counter[str](aborted=0, cancel_requested=0, not_found=0)
        for first in range(0, len(named), REQUESTS_MAX):
            done.update(_abort(remote, body | {"request_ids": named[first : first + REQUESTS_MAX]}))
    else:
        done = _abort(remote, body)
    remote.show(dict(done), tuple(done))


def _abort(remote: Remote, body: dict[str, Any]) -> Counter[str]:
    done = Counter[str](aborted=0, cancel_requested=0)
    while True:
        answer = remote.ask(lambda api: api.post(api_path("leads", "abort"), body))
        done.update({name: answer[name] for name in ("aborted", "cancel_requested")})
        if answer["complete"]:
            break
    if "request_ids" in body:
        done["not_found"] = sum(each["result"] == "not_found" for each in answer["results"])
    return done


@app.command()
def reopen(
    ctx: RemoteContext,
    reason: Annotated[str, typer.Option(help="The reason, for the audit log and the lead's timeline.")],
    lead_ids: Annotated[list[str] | None, typer.Argument(help="Ids of leads.")] = None,
    outcomes: Annotated[
        list[str] | None,
        typer.Option("--outcome", help="Leads with this outcome, for example NO_AGENT. May be repeated."),
    ] = None,
    finished_since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Leads that ended since then: 09:00 (today, local time), 2h, or 2030-05-01T09:00:00+02:00.",
        ),
    ] = "",
    merchant_id: Merchant = "",
    campaign_id: Campaign = "",
    phone: Phone = "",
    scheduled_at: Annotated[
        str, typer.Option("--at", help="When to call, as an ISO date. Left out: now.")
    ] = "",
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="The maximum number of attempts, those made before included."),
    ] = None,
    request_id: Annotated[
        str,
        typer.Option(help="Your own id of the request; a repeated one reopens nothing. Left out: a new one."),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the leads, and change nothing.")] = False,
) -> None:
    """Call finished leads again: those that are named, or all that ended in a certain way since a moment.

    Windows, limits, lists and stops are judged anew. A lead whose last call's fate is unknown is called again only if
    its carrier says that there was no such call. Ends with status 1 if a lead was refused.
    """
    body = {"request_id": str(uuid4())} | options(ctx) | given(finished_since=_since(finished_since))
    remote = ctx.obj
    done: dict[str, Any] = {"matched": 0, "reopened": 0, "refused": Counter()}
    while True:
        answer = remote.ask(lambda api: api.post(api_path("leads", "reopen"), body))
        # Each round evaluates the refused ones again: the last one counts.
        done["matched"] = done["reopened"] + answer["matched"]
        done["reopened"] += answer["reopened"]
        done["refused"] = answer["refused"]
        if answer["complete"]:
            break
    remote.show(done | {"request_id": body["request_id"]}, ("matched", "reopened", "refused", "request_id"))
    if done["refused"]:
        raise typer.Exit(1)


def _since(text: str) -> str:
    """A time of today, a duration before now, or an ISO date, as an ISO date with its zone."""
    if not text:
        return ""
    now = datetime.now().astimezone()
    if re.fullmatch(r"[0-2]?[0-9]:[0-5][0-9]", text):
        hour, minute = map(int, text.split(":"))
        if hour > 23:
            raise typer.BadParameter(f"{text!r} is no time of day.")
        return now.replace(hour=hour, minute=minute, second=0, microsecond=0).isoformat()
    if re.fullmatch(r"[0-9.]+(s|m|h|d)", text):
        ago = timedelta(seconds=float(str(parse_duration_s(text))))
        return (now - ago).isoformat()
    return text


@app.command()
def upload(
    ctx: RemoteContext,
    file: File,
    form: Form = None,
    atomic: Atomic = False,
) -> None:
    """Upload up to 100,000 leads from a file. Exits with status 1 if a row was refused. Safe to repeat."""
    params: dict[str, str | int] = {"results": "problems", "atomic": "true" if atomic else "false"}
    upload_file(ctx.obj, file, form, api_path("leads", "bulk"), params, UPLOAD_TIMEOUT_S)


def _costs(attempt: dict[str, Any]) -> dict[str, str]:
    """By the merchant's price, and by the carrier's own figure. An older platform has neither."""
    ours, theirs = attempt.get("cost_micros"), attempt.get("carrier_cost_micros")
    return {
        "cost": money(ours) if ours is not None else "",
        "carrier_cost": money(theirs, attempt.get("carrier_cost_currency")) if theirs is not None else "",
    }
