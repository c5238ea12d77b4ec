"""Endpoints for agents: the context of a call, its state, and the agent's report.

All require the call's own token instead of an API key. An agent gets it with the stream of the call, so it has access
to its own calls and no others. An agent that lost its call to another one can change nothing any more: its token names
its turn.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.auth import API_ROOT
from trunkline.api.errors import ApiError, conflict, invalid, not_found, sentence
from trunkline.api.raw_routes import Part, RawRoute, json_response, operation, said
from trunkline.api.store import Store
from trunkline.dispatch import agent_reports
from trunkline.http.body import bounded_body
from trunkline.jobs.platform.enrichment import CallSource, EnrichmentService, Wanted
from trunkline.leads.ingest import FieldProblem, payload_problem
from trunkline.model import CallReport
from trunkline.router.tokens import CallKeys, CallProof
from trunkline.schema.calls import AgentCall, CallLead, CallOutcome, StoredForCall
from trunkline.store import call_reports
from trunkline.store.call_reports import CallContext
from trunkline.store.database import Connection
from trunkline.store.jobs import Inserted
from trunkline.telemetry import metrics

CALL_PATH = f"{API_ROOT}/calls/{{call_sid}}"
DATA_BYTES_MAX = 64 * 1024
STATE_BYTES_MAX = 64 * 1024
# A report with its data; transcripts are sent as references.
BODY_BYTES_MAX = 128 * 1024

_CALL = TypeAdapter(AgentCall)
_OUTCOME = TypeAdapter(CallOutcome)


@dataclass(frozen=True, slots=True)
class AgentApi:
    store: Store
    keys: CallKeys
    # Requests enrichment of calls; None where enrichment is off.
    enrichment: EnrichmentService | None = None

    def raw_routes(self) -> list[RawRoute]:
        return [
            RawRoute("GET", CALL_PATH, self.context, None, _CONTEXT_DOC),
            RawRoute("PUT", f"{CALL_PATH}/state", self.save_state, None, _STATE_DOC),
            RawRoute("POST", f"{CALL_PATH}/outcome", self.outcome, None, _OUTCOME_DOC),
        ]

    async def context(self, request: Request) -> Response:
        proof = self._proof(request)
        async with self.store.autocommit() as conn:
            call = await call_reports.context(conn, proof.attempt_id)
            report = await call_reports.get(conn, proof.attempt_id)
            await call_reports.join(conn, proof.attempt_id)
        if call is None:
            raise not_found("call")
        shown = _agent_call(call, request.path_params["call_sid"], report is not None, proof.turn)
        return Response(_CALL.dump_json(shown, by_alias=True), media_type="application/json")

    async def save_state(self, request: Request) -> Response:
        proof = self._proof(request)
        state = _state(await _bounded_body(request))
        async with self.store.autocommit() as conn:
            is_kept = await call_reports.save_state(conn, proof.attempt_id, proof.turn, state)
            is_known = is_kept or await call_reports.context(conn, proof.attempt_id) is not None
        if not is_known:
            raise not_found("call")
        if not is_kept:
            raise _superseded()
        return json_response(200, StoredForCall(True, proof.attempt_id))

    async def outcome(self, request: Request) -> Response:
        proof = self._proof(request)
        attempt_id = proof.attempt_id
        report = _report(await _bounded_body(request))
        async with self.store.writing() as tx:
            taken = await agent_reports.take(tx, attempt_id, report, proof.turn)
            enqueued = await self._enrich(tx, attempt_id, report) if taken == "new" else []
        if taken == "new":
            async with self.store.autocommit() as conn:
                await call_reports.join(conn, attempt_id)
        if self.enrichment is not None:
            self.enrichment.wake(enqueued)
        metrics.CALL_REPORTS.labels(taken).inc()
        match taken:
            case "no_call":
                raise not_found("call")
            case "contradicted":
                raise conflict(
                    "reported_before", "A report of this call with other content was stored before."
                )
            case "superseded":
                raise _superseded()
            case "new":
                return json_response(201, StoredForCall(True, attempt_id))
            case "known":
                return json_response(200, StoredForCall(True, attempt_id))

    async def _enrich(self, tx: Connection, attempt_id: UUID, report: CallReport) -> list[Inserted]:
        if self.enrichment is None:
            return []
        call = await call_reports.context(tx, attempt_id)
        assert call is not None, "reported on"
        source = CallSource(report.recording_ref, report.transcript_ref, dict(report.data))
        return await self.enrichment.enqueue(tx, [Wanted(str(attempt_id), source, call.tenant, attempt_id)])

    def _proof(self, request: Request) -> CallProof:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        proof = self.keys.verify(token.strip(), request.path_params["call_sid"])
        if scheme.lower() != "bearer" or proof is None:
            raise ApiError(
                401,
                "unauthorized",
                f"Send the call's own token. {_PROOF}",
                headers={"WWW-Authenticate": 'Bearer realm="trunkline"'},
            )
        return proof


def _superseded() -> ApiError:
    return conflict(
        "call_resumed", "Another agent has this call now. Nothing more is accepted from this one."
    )


def _agent_call(call: CallContext, call_sid: str, is_reported: bool, turn: int) -> AgentCall:
    payload = None if call.payload is None else dict(call.payload)
    lead = call.lead_id and CallLead(call.lead_id, call.request_id, payload, call.max_attempts, call.timezone)
    return AgentCall(
        call_sid=call_sid,
        attempt_id=call.attempt_id,
        attempt_no=call.attempt_no,
        direction="inbound" if call.direction == "inbound" else "outbound",
        carrier=call.carrier,
        to=call.to_phone,
        from_=call.from_phone,
        reseller_id=call.reseller_id,
        merchant_id=call.merchant_id,
        campaign_id=call.campaign_id,
        template=(payload or {}).get("template"),
        lead=lead or None,
        reported=is_reported,
        resumed=turn > 0,
        turn=turn,
        state=None if call.state is None else dict(call.state),
    )


def _report(body: bytes) -> CallReport:
    try:
        given = _OUTCOME.validate_json(body)
    except ValidationError as error:
        raise invalid(*_problems(error)) from None
    if problem := payload_problem(given.data, DATA_BYTES_MAX, "data"):
        raise invalid(problem)
    return CallReport(
        given.disposition,
        given.opt_out,
        given.callback_at,
        given.transcript_ref,
        given.recording_ref,
        given.data,
    )


def _state(body: bytes) -> dict[str, Any]:
    try:
        state = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise invalid(FieldProblem("body", "The state must be a JSON object.")) from None
    if problem := payload_problem(state, STATE_BYTES_MAX, "body"):
        raise invalid(problem)
    return state


def _problems(error: ValidationError) -> list[FieldProblem]:
    return [
        FieldProblem(".".join(map(str, each["loc"]))[:100] or "body", sentence(each))
        for each in error.errors()
    ]


async def _bounded_body(request: Request) -> bytes:
    body = await bounded_body(request, BODY_BYTES_MAX)
    if body is None:
        raise ApiError(413, "body_too_large", f"At most {BODY_BYTES_MAX} bytes are taken here.")
    return body


_PROOF = (
    "Authorization: `Bearer <attempt>.<key>`, as the parameters of the call's stream have them; "
    "`<attempt>.<resumed>.<key>` where they have `resumed`."
)
_NO_CALL = {
    "401": said("The token does not belong to this call."),
    "404": said("There is no such call."),
    "503": said("The database is unavailable; send it again."),
}
_BODY = {"408": said("The body arrived too slowly."), "413": said("Too large.")}
_STATE: Part = {
    "application/json": {
        "schema": {"type": "object", "additionalProperties": True},
        "example": {"step": "date", "name": "Ada"},
    }
}

_CONTEXT_DOC = operation(
    "get_agent_call",
    "agents",
    "Get the context of a call",
    "Lead, payload, template and direction. `resumed`: an agent before this one had the call and was lost; `state` is "
    f"what it had stored. {_PROOF}",
    {"200": said("The call.", AgentCall), **_NO_CALL},
)
_STATE_DOC = operation(
    "save_call_state",
    "agents",
    "Store the state with which another agent can resume the call",
    f"A JSON object of at most 64 KiB; the last one counts. {_PROOF}",
    {
        "200": said("Stored.", StoredForCall),
        **_NO_CALL,
        **_BODY,
        "409": said("Another agent has this call now."),
        "422": said("Not a JSON object, or too large."),
    },
    body=_STATE,
)
_OUTCOME_DOC = operation(
    "report_call",
    "agents",
    "Report the outcome of a call",
    f"Once per call, also after its end. Idempotent. {_PROOF}",
    {
        "200": said("This report was stored before.", StoredForCall),
        "201": said("Stored.", StoredForCall),
        **_NO_CALL,
        **_BODY,
        "409": said("Another report of this call was stored before, or another agent has the call now."),
        "422": said("A field is wrong: see `fields`."),
    },
    body=CallOutcome,
)
