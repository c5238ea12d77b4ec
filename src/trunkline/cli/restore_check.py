"""`trunkline restore-check`: finds and settles the calls that a restored database lacks. It queries Postgres and the
carriers itself, so the platform need not run meanwhile."""

import json
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

from msgspec.structs import asdict
from rich.table import Table

from trunkline.cli.console import out
from trunkline.cli.doctor import engine_addresses, known_secrets
from trunkline.dispatch.restore_check import Comparison, RestoreCheck, RestoreRefusal, Settled
from trunkline.errors import TrunklineError
from trunkline.settings import Settings
from trunkline.store import controls, restores
from trunkline.store import database as store_database
from trunkline.store.database import CANNOT_CONNECT, describe
from trunkline.store.restores import Unsettled, WaitingLead
from trunkline.telephony.accounts import AccountService, Vault, accounts_of
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.directory import CarrierDirectory

SHOWN_MAX = 50

REFUSED: dict[RestoreRefusal, str] = {
    "kill_switch_off": "Nothing was settled: the kill switch is off, and calls may be placed right now. First: "
    'trunkline control stop kill-switch --reason "restored"',
    "calls_live": "Nothing was settled: the checker still queries the carriers about calls that were live in the "
    "backup. While a `control` process runs this takes up to eleven minutes. Run this again.",
    "lists_unread": "Nothing was settled: not every call list could be read. Fix that and run this again. With "
    "--accept-unread the leads that those accounts may have called end as UNKNOWN.",
}


class RestoreCheckError(TrunklineError):
    """The comparison is not possible."""


async def check_restore(
    settings: Settings, since_text: str, *, settle: bool, accept_unread: bool, as_json: bool
) -> bool:
    """False: some calls are not settled."""
    since = _moment(since_text)
    url, _ = engine_addresses(settings)
    secrets = known_secrets(settings)
    if not url or not secrets:
        raise RestoreCheckError(
            "restore-check needs DATABASE_URL and TRUNKLINE_SECRET_KEY, as the platform has them."
        )
    async with AsyncExitStack() as stack:
        try:
            database = await store_database.connect(url, pool_size=2)
        except CANNOT_CONNECT as error:
            raise RestoreCheckError(f"Postgres cannot be reached: {describe(error)}") from error
        stack.push_async_callback(database.close)
        keys = CallbackKeys.from_secrets(secrets)
        carriers = CarrierDirectory(accounts_of(settings, keys))
        stack.push_async_callback(carriers.aclose)
        await AccountService(
            database, carriers, Vault.from_secrets(secrets), keys, "", settings.carrier.request_timeout_s
        ).refresh()
        async with database.connection() as conn:
            between = await restores.unsettled(conn)
            if since is not None:
                found_at = between.found_at if between else (await controls.poll(conn)).now
                between = Unsettled(since, found_at, 1)
        if between is None:
            text = "No restore is unsettled. Name the moment with --since to compare all the same."
            if as_json:
                print(json.dumps({"called": [], "settled": None, "message": text}))
            else:
                out.print(text)
            return True
        check = RestoreCheck(database, carriers)
        comparison = await check.compare(between.backup_at, between.found_at)
        done = await check.settle(comparison, accept_unread=accept_unread) if settle else None
    if as_json:
        settled = asdict(done) if isinstance(done, Settled) else done
        print(json.dumps(_report(comparison) | {"settled": settled}, indent=2))
    else:
        _show(comparison, done)
    return isinstance(done, Settled)


def _show(comparison: Comparison, done: Settled | RestoreRefusal | None) -> None:
    matching = comparison.matching
    out.print(f"Calls since {comparison.since:%Y-%m-%d %H:%M:%S} UTC, as the carriers list them:")
    for read in comparison.accounts:
        problem = f"  [red]cannot be read: {read.problem}[/]" if read.problem else ""
        out.print(f"  {read.carrier} {read.account}: {read.calls}{problem}")
    out.print(f"\n[bold]{len(matching.called)} leads would be called again.[/]")
    table = Table("lead", "merchant", "request_id", "phone", "due", "calls")
    for called in matching.called[:SHOWN_MAX]:
        lead, calls = called.lead, ", ".join(lost.call.call_id for lost in called.calls)
        due = f"{lead.due_at:%m-%d %H:%M:%S}"
        table.add_row(str(lead.id), lead.merchant_id, lead.request_id, lead.phone, due, calls)
    if matching.called:
        out.print(table)
    for count, what in (
        (len(matching.called) - SHOWN_MAX, "more; --json has them all."),
        (len(matching.doubtful), "leads may have been called: there were fewer calls than leads."),
        (comparison.unread, "leads may have been called by an account whose list cannot be read."),
        (len(matching.later), "leads are due later, to people who were called. They stay as they are."),
        (len(matching.orphans), "calls belong to leads that are not in this database. --json lists them."),
        (
            comparison.live,
            "calls were live in the backup, and the checker still queries the carriers about them.",
        ),
    ):
        if count > 0:
            out.print(f"{count} {what}")
    out.print("\n" + _advice(done), soft_wrap=True)


def _advice(done: Settled | RestoreRefusal | None) -> str:
    match done:
        case None:
            return "Nothing was changed. `trunkline restore-check --settle` settles these calls."
        case Settled(restored=restored, unknown=unknown):
            return (
                f"Settled: {restored} leads have their calls back, {unknown} ended as UNKNOWN. Now lift the switch: "
                'trunkline control resume kill-switch --ramp 10m --reason "restore settled"'
            )
        case refusal:
            return REFUSED[refusal]


def _report(comparison: Comparison) -> dict[str, Any]:
    matching = comparison.matching
    return {
        "since": comparison.since.isoformat(),
        "found_at": comparison.found_at.isoformat(),
        "accounts": [asdict(read) for read in comparison.accounts],
        "called": [
            _lead(called.lead) | {"calls": [lost.call.call_id for lost in called.calls]}
            for called in matching.called
        ],
        "doubtful": [_lead(lead) for lead in matching.doubtful],
        "later": [_lead(lead) for lead in matching.later],
        "orphans": [
            {
                "carrier": lost.carrier,
                "account": lost.account,
                "call": lost.call.call_id,
                "to": lost.call.to,
                "from": lost.call.from_,
                "at": lost.at.isoformat() if lost.at else None,
            }
            for lost in matching.orphans
        ],
        "unread": comparison.unread,
        "live": comparison.live,
    }


def _lead(lead: WaitingLead) -> dict[str, Any]:
    return {
        "id": str(lead.id),
        "merchant_id": lead.merchant_id,
        "request_id": lead.request_id,
        "phone": lead.phone,
        "due_at": lead.due_at.isoformat(),
    }


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RestoreCheckError(f"{text!r} is no moment: write for example 2026-11-16T09:00:00+00:00.")
    return moment
