"""`trunkline leads`: take in, find, change and abort leads, over the API of a running platform.

trunkline leads create --merchant acme-store --phone +14155550123 --request-id order-4711
trunkline leads upload people.csv
trunkline leads why 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline leads abort --merchant acme-store --reason "sold out"
"""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote
from uuid import uuid4

import typer

from trunkline.cli.console import out
from trunkline.cli.control import ROOT, Context, Limit, Remote, connect
from trunkline.cli.uploads import Format, format_of, send, show_report
from trunkline.client.leads import UPLOAD_TIMEOUT_S
from trunkline.client.transport import Transport
from trunkline.states import LeadStatus

app = typer.Typer(help="Take in, find, change and abort leads.", no_args_is_help=True)
app.callback()(connect)

LeadId = Annotated[str, typer.Argument(help="The id of a lead.")]
Merchant = Annotated[str, typer.Option(help="Of this merchant.")]
Campaign = Annotated[str, typer.Option(help="Of this campaign.")]
Phone = Annotated[str, typer.Option(help="To this phone, with its country code.")]
Reason = Annotated[str, typer.Option(help="Why. It is in the outcome and in the audit log.")]
Payload = Annotated[str, typer.Option(help='What the agent should know, as JSON: {"order": "4711"}.')]

_ROW = (
    "id", "request_id", "merchant_id", "phone", "status", "outcome", "due_at", "attempt_count", "priority", "pool",
)  # fmt: skip
_ATTEMPT = (
    "attempt_no",
    "state",
    "carrier",
    "from_phone",
    "intent_at",
    "answered_at",
    "ended_at",
    "end_reason",
    "agent",
    "carrier_call_id",
)
_HAPPENING = ("at", "source", "what", "reason", "actor")
_ENTRY = ("id", "phone", "merchant_id", "reason", "created_by")
_CHECK = ("gate", "open", "detail", "until")


@app.command()
def create(
    ctx: Context,
    phone: Annotated[str, typer.Option(help="Whom to call, best as E.164.")] = "",
    merchant: Merchant = "",
    request_id: Annotated[str, typer.Option(help="Your own id of it. Left out: a new one.")] = "",
    payload: Payload = "",
    at: Annotated[str, typer.Option(help="When, for example 2030-05-01T09:30:00+02:00. Left out: now.")] = "",
    timezone: Annotated[str, typer.Option(help="Where the callee is, for example Asia/Kolkata.")] = "",
    priority: Annotated[int | None, typer.Option(min=1, max=99, help="1 is called first.")] = None,
    campaign: Campaign = "",
    pool: Annotated[str, typer.Option(help="The number pool to dial from.")] = "",
    max_attempts: Annotated[int | None, typer.Option(min=1, max=20, help="All attempts counted.")] = None,
    webhook: Annotated[str, typer.Option(help="Where to report the result.")] = "",
) -> None:
    """Take in one lead. The same request id again is the same lead."""
    body = _given(
        request_id=request_id or str(uuid4()),
        merchant_id=merchant,
        phone=phone,
        payload=_json(payload),
        scheduled_at=at,
        timezone=timezone,
        priority=priority,
        campaign_id=campaign,
        pool=pool,
        max_attempts=max_attempts,
        reporting_webhook_url=webhook,
    )
    _post(ctx, "", body)


@app.command("list")
def list_leads(
    ctx: Context,
    status: Annotated[LeadStatus | None, typer.Option(help="Only with this status.")] = None,
    merchant: Merchant = "",
    campaign: Campaign = "",
    phone: Phone = "",
    request_id: Annotated[str, typer.Option(help="The one with this request id.")] = "",
    limit: Limit = 50,
) -> None:
    """Leads, newest first."""
    remote = _remote(ctx)
    query = _given(
        status=status,
        merchant_id=merchant,
        campaign_id=campaign,
        phone=phone,
        request_id=request_id,
        limit=limit,
    )
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/leads", query)), _ROW)


@app.command()
def show(ctx: Context, lead_id: LeadId) -> None:
    """Everything about one lead: attempts, reasons, and what happened when."""
    remote = _remote(ctx)
    lead = remote.ask(lambda api: api.get(_path(lead_id)))
    if remote.as_json:
        remote.show(lead, ())
        return
    parts = {name: lead.pop(name) for name in ("attempts", "decisions", "timeline")}
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
    ctx: Context,
    lead_id: LeadId,
    reason: Annotated[str, typer.Option(help="Why. It is kept with the entry.")],
) -> None:
    """Put the person of a lead on its merchant's do-not-call list."""
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: _never_call(api, lead_id, reason)), _ENTRY)


async def _never_call(api: Transport, lead_id: str, reason: str) -> Any:
    lead = await api.get(_path(lead_id))
    body = {"phone": lead["phone"], "merchant_id": lead["merchant_id"], "reason": reason}
    return await api.post(f"{ROOT}/do-not-call", body)


@app.command()
def why(ctx: Context, lead_id: LeadId) -> None:
    """Why a lead is not being called, and when it may be."""
    remote = _remote(ctx)
    answer = remote.ask(lambda api: api.get(_path(lead_id, "why")))
    if remote.as_json:
        remote.show(answer, ())
        return
    out.print(answer["answer"])
    remote.show({"items": answer["checks"]}, _CHECK)


@app.command()
def change(
    ctx: Context,
    lead_id: LeadId,
    priority: Annotated[int | None, typer.Option(min=1, max=99)] = None,
    pool: Annotated[str, typer.Option(help="The number pool to dial from.")] = "",
    payload: Payload = "",
    max_attempts: Annotated[int | None, typer.Option(min=1, max=20)] = None,
) -> None:
    """Change a lead that waits."""
    _patch(
        ctx, lead_id, _given(priority=priority, pool=pool, payload=_json(payload), max_attempts=max_attempts)
    )


@app.command()
def reschedule(
    ctx: Context,
    lead_id: LeadId,
    at: Annotated[str, typer.Argument(help="When instead, for example 2030-05-01T09:30:00+02:00.")],
) -> None:
    """Call a lead at another time."""
    _patch(ctx, lead_id, {"scheduled_at": at})


@app.command("dispatch-now")
def dispatch_now(ctx: Context, lead_id: LeadId) -> None:
    """Make a lead due at once. Windows, limits and stops hold as they do for every call."""
    _post(ctx, f"/{quote(lead_id, safe='')}/dispatch-now", {})


@app.command()
def abort(
    ctx: Context,
    reason: Reason,
    lead_ids: Annotated[list[str] | None, typer.Argument(help="Ids of leads.")] = None,
    merchant: Merchant = "",
    campaign: Campaign = "",
    phone: Phone = "",
    hang_up: Annotated[
        bool, typer.Option("--hang-up", help="Cut short the calls that are going on.")
    ] = False,
) -> None:
    """End leads: those that are named, or all that fit. One that is being called ends with its call."""
    body = _given(
        reason=reason,
        lead_ids=lead_ids,
        merchant_id=merchant,
        campaign_id=campaign,
        phone=phone,
        hang_up=hang_up,
    )
    remote = _remote(ctx)
    done = {"aborted": 0, "cancel_requested": 0}
    while True:
        answer = remote.ask(lambda api: api.post(f"{ROOT}/leads/abort", body))
        done = {name: count + answer[name] for name, count in done.items()}
        if answer["complete"]:
            break
    remote.show(done, tuple(done))


@app.command()
def upload(
    ctx: Context,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="CSV, JSON lines or a JSON array.")
    ],
    form: Annotated[Format | None, typer.Option("--format", help="Left out: by the file's name.")] = None,
    atomic: Annotated[bool, typer.Option("--atomic", help="All rows or none.")] = False,
) -> None:
    """Take in up to 100,000 leads from a file. Ends with status 1 if a row was refused. Safe to repeat."""
    kind = format_of(file, form)
    params: dict[str, str | int] = {"results": "problems", "atomic": "true" if atomic else "false"}
    remote = _remote(ctx)
    with file.open("rb") as source:
        report = remote.ask(
            lambda api: send(api, source, f"{ROOT}/leads/bulk", kind, params, UPLOAD_TIMEOUT_S)
        )
    show_report(remote, report)


def _post(ctx: Context, path: str, body: dict[str, Any]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.post(f"{ROOT}/leads{path}", body)), _ROW)


def _patch(ctx: Context, lead_id: str, body: dict[str, Any]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.patch(_path(lead_id), body)), _ROW)


def _path(lead_id: str, *more: str) -> str:
    return "/".join((ROOT, "leads", quote(lead_id, safe=""), *more))


def _json(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not JSON.") from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _remote(ctx: Context) -> Remote:
    remote: Remote = ctx.obj
    return remote
