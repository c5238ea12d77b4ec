"""Endpoints for agents: the context of a call, its state, and the agent's report.

All require the call's own token instead of an API key. An agent gets it with the stream of the call, so it has access
to its own calls and no others. An agent that lost its call to another one can change nothing any more: its token names
its turn.
"""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec
from pydantic import ConfigDict, Field, StringConstraints, ValidationError
from pydantic.config import JsonDict
from starlette.requests import Request
from starlette.responses import Response

from trunkline.api.auth import API_ROOT
from trunkline.api.errors import ApiError, conflict, invalid, not_found
from trunkline.api.models import Body
from trunkline.api.raw_routes import RawRoute, json_response
from trunkline.api.store import Store
from trunkline.dispatch import agent_reports
from trunkline.http.body import bounded_body
from trunkline.jobs.platform.enrichment import CallSource, EnrichmentService, Wanted
from trunkline.leads.ingest import FieldProblem, payload_problem
from trunkline.model import CallReport
from trunkline.router.tokens import CallKeys, CallProof
from trunkline.schema.fields import Moment
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

Reference = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]+$")]
Disposition = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]

EXAMPLE: JsonDict = {
    "disposition": "interested",
    "opt_out": False,
    "callback_at": "2030-05-01T09:30:00+02:00",
    "transcript_ref": "s3://transcripts/4711.json",
    "recording_ref": "s3://recordings/4711.wav",
    "data": {"appointment": "2030-05-03"},
}


class OutcomeIn(Body):
    """The outcome of a call."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    disposition: Disposition | None = Field(
        None,
        description="The outcome, in the agent's own vocabulary. BUSY, VOICEMAIL and TRANSFERRED mean the "
        "platform's outcomes of the same name.",
    )
    opt_out: bool = Field(False, description="The person wants no more calls from this merchant.")
    callback_at: Moment | None = Field(None, description="When the person wants to be called again.")
    transcript_ref: Reference | None = Field(None, description="Where the transcript is stored.")
    recording_ref: Reference | None = Field(None, description="Where the recording is stored.")
    data: dict[str, Any] = Field(default_factory=dict, description="Other data that the agent collected.")


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
        return json_response(
            200, _body(call, request.path_params["call_sid"], report is not None, proof.turn)
        )

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
        return json_response(200, {"success": True, "attempt_id": str(proof.attempt_id)})

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
                return json_response(201, {"success": True, "attempt_id": str(attempt_id)})
            case "known":
                return json_response(200, {"success": True, "attempt_id": str(attempt_id)})

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


def _body(call: CallContext, call_sid: str, is_reported: bool, turn: int) -> dict[str, Any]:
    return {
        "call_sid": call_sid,
        "attempt_id": str(call.attempt_id),
        "attempt_no": call.attempt_no,
        "direction": call.direction,
        "carrier": call.carrier,
        "to": call.to_phone,
        "from": call.from_phone,
        "reseller_id": call.reseller_id,
        "merchant_id": call.merchant_id,
        "campaign_id": str(call.campaign_id) if call.campaign_id else None,
        "template": (call.payload or {}).get("template"),
        "lead": _lead(call),
        "reported": is_reported,
        "resumed": turn > 0,
        "turn": turn,
        "state": call.state,
    }


def _lead(call: CallContext) -> dict[str, Any] | None:
    if call.lead_id is None:
        return None
    return {
        "id": str(call.lead_id),
        "request_id": call.request_id,
        "payload": call.payload,
        "max_attempts": call.max_attempts,
        "timezone": call.timezone,
    }


def _report(body: bytes) -> CallReport:
    try:
        given = OutcomeIn.model_validate_json(body)
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
        FieldProblem(".".join(map(str, each["loc"]))[:100] or "body", each["msg"]) for each in error.errors()
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
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_NO_CALL = {"401": "The token does not belong to this call.", "404": "There is no such call."}


def _doc(summary: str, description: str, responses: dict[str, str], body: Any = None) -> dict[str, Any]:
    return {
        "tags": ["agents"],
        "summary": summary,
        "description": f"{description} {_PROOF}",
        **({"requestBody": {"required": True, "content": body}} if body else {}),
        "responses": {
            status: {"description": said, "content": _OBJECT} for status, said in sorted(responses.items())
        },
    }


_CONTEXT_DOC = _doc(
    "Get the context of a call",
    "Lead, payload, template and direction. `resumed`: an agent before this one had the call and was lost; `state` is "
    "what it had stored.",
    {"200": "The call.", **_NO_CALL},
)
_STATE_DOC = _doc(
    "Store the state with which another agent can resume the call",
    "A JSON object of at most 64 KiB; the last one counts.",
    {
        "200": "Stored.",
        **_NO_CALL,
        "409": "Another agent has this call now.",
        "413": "Too large.",
        "422": "Not a JSON object, or too large.",
    },
    _OBJECT,
)
_OUTCOME_DOC = _doc(
    "Report the outcome of a call",
    "Once per call, also after its end. Idempotent.",
    {
        "200": "This report was stored before.",
        "201": "Stored.",
        **_NO_CALL,
        "409": "Another report of this call was stored before, or another agent has the call now.",
        "413": "Too large.",
        "422": "A field is wrong: see `fields`.",
    },
    {"application/json": {"schema": OutcomeIn.model_json_schema(), "example": EXAMPLE}},
)
