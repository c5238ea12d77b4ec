"""One pre-check over HTTP: to public addresses only, bounded in time and size, retried when there is no reply."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from yarl import URL

from trunkline.http.outgoing import FAILURES, Outgoing, was_refused
from trunkline.leads.precheck_conditions import HttpCheck, holds
from trunkline.store.prechecks import PrecheckLead

ANSWER_BYTES_MAX = 64 * 1024
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class PrecheckResponse:
    status: int
    body: Any

    @property
    def is_failure(self) -> bool:
        """The tenant's system is reachable and cannot answer now."""
        return self.status >= 500 or self.status == 429


@dataclass(frozen=True, slots=True)
class NoReply:
    """`is_final`: a retry would be in vain."""

    reason: str
    is_final: bool = False


PrecheckReply = PrecheckResponse | NoReply


def hosts_of(checks: Sequence[HttpCheck]) -> set[str]:
    return {URL(check.url).host or "" for check in checks}


async def run_checks(
    outgoing: Outgoing, checks: Sequence[HttpCheck], lead: PrecheckLead
) -> tuple[HttpCheck, PrecheckReply] | None:
    """None if all checks pass, else the first that does not, with its reply."""
    for check in checks:
        reply = await _run_check(outgoing, check, lead)
        if not _passes(check, reply):
            return check, reply
    return None


def _passes(check: HttpCheck, reply: PrecheckReply) -> bool:
    if isinstance(reply, NoReply) or reply.is_failure:
        return check.on_failure == "proceed"
    answer = {"status": reply.status, "body": reply.body}
    judges_status = any(condition.path == "status" for condition in check.conditions)
    is_fine = judges_status or 200 <= reply.status < 300
    return is_fine and all(holds(condition, answer) for condition in check.conditions)


async def _run_check(outgoing: Outgoing, check: HttpCheck, lead: PrecheckLead) -> PrecheckReply:
    reply: PrecheckReply = NoReply("not_asked")
    for attempt in range(check.retries + 1):
        if attempt:
            await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
        reply = await _request_once(outgoing, check, lead)
        if isinstance(reply, PrecheckResponse) and not reply.is_failure:
            return reply
        if isinstance(reply, NoReply) and reply.is_final:
            return reply
    return reply


async def _request_once(outgoing: Outgoing, check: HttpCheck, lead: PrecheckLead) -> PrecheckReply:
    fields: dict[str, str | int] = {
        "lead_id": str(lead.id),
        "request_id": lead.request_id,
        "merchant_id": lead.merchant_id,
        "phone": lead.phone,
        "attempt": lead.attempt_count + 1,
    }
    if check.method == "GET":
        url, body = str(URL(check.url).update_query(fields)), None
    else:
        url, body = check.url, msgspec.json.encode({**fields, "payload": lead.payload})
    try:
        async with (
            asyncio.timeout(check.timeout_s),
            outgoing.request(
                check.method,
                url,
                body=body,
                headers={**check.headers, "Content-Type": "application/json"},
                total_timeout_s=check.timeout_s,
            ) as response,
        ):
            # One byte more than allowed, so that a longer body is recognised.
            raw = await response.content.read(ANSWER_BYTES_MAX + 1)
            return PrecheckResponse(response.status, _decoded(raw))
    except FAILURES as error:
        if was_refused(error):
            return NoReply("address_refused", is_final=True)
        return NoReply("timeout" if isinstance(error, TimeoutError) else "not_reached")


def _decoded(raw: bytes) -> Any:
    """A body that is not JSON, or too long, has no fields: conditions on them do not hold."""
    if len(raw) > ANSWER_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
