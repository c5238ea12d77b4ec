"""The agent's contract over HTTP: which tokens read a call's context, and which reports are stored."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.api.asgi import Answer, AsgiClient
from tests.support.dispatch.dialing import Dialing, open_dialing
from trunkline.api.agent_endpoints import DATA_BYTES_MAX, AgentApi
from trunkline.api.application import create_api
from trunkline.api.deps import ApiDeps
from trunkline.api.store import Store
from trunkline.clock import SystemClock
from trunkline.router.tokens import CallKeys
from trunkline.store.database import Database
from trunkline.telemetry import metrics

KEYS = CallKeys.from_secrets(["a secret of the tests"])


async def nothing(_: object) -> None:
    return


@dataclass
class Desk:
    dialing: Dialing
    client: AsgiClient
    attempt: UUID
    call_sid: str = "CA1"

    @property
    def path(self) -> str:
        return f"/api/v1/calls/{self.call_sid}"

    @property
    def token(self) -> str:
        return f"{self.attempt}.{KEYS.sign(self.attempt, self.call_sid)}"

    def token_of(self, turn: int) -> str:
        key = KEYS.sign(self.attempt, self.call_sid, turn)
        return f"{self.attempt}.{turn}.{key}" if turn else f"{self.attempt}.{key}"

    async def get(self, token: str | None = None) -> Answer:
        return await self.client.with_key(token or self.token).get(self.path)

    async def post(self, body: object, token: str | None = None) -> Answer:
        return await self.client.with_key(token or self.token).post(f"{self.path}/outcome", body)

    async def save(self, state: object, turn: int = 0) -> Answer:
        client = self.client.with_key(self.token_of(turn))
        return await client.request("PUT", f"{self.path}/state", json=state)

    async def give(self, turn: int) -> None:
        """The call has an agent, for the so-manieth time."""
        await self.dialing.run(
            "INSERT INTO allocations (id, has_attempt, call, turn) VALUES ($1, true, $2, $3)"
            " ON CONFLICT (id) DO UPDATE SET turn = excluded.turn",
            self.attempt,
            self.call_sid,
            turn,
        )

    async def joined_at(self) -> datetime | None:
        row = await self.dialing.row("SELECT joined_at FROM allocations WHERE id = $1", self.attempt)
        joined: datetime | None = row["joined_at"]
        return joined

    async def report(self) -> dict[str, Any]:
        return await self.dialing.row("SELECT * FROM call_reports WHERE attempt_id = $1", self.attempt)


def application(database: Database) -> AsgiClient:
    face = AgentApi(Store(database, timeout_s=5), KEYS)
    deps = ApiDeps(database, SystemClock(), nothing, {}, metrics.render)
    return AsgiClient(create_api(deps, face.raw_routes()))


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with open_dialing(database_url) as dialing:
        attempt = await dialing.attempt("+12125550199", state="answered")
        yield Desk(dialing, application(dialing.database), attempt)


@pytest.mark.parametrize("what", ["context", "report"])
async def test_an_agent_joins_its_call_once_by_reading_context_or_reporting(desk: Desk, what: str) -> None:
    await desk.dialing.run("INSERT INTO allocations (id, has_attempt) VALUES ($1, true)", desk.attempt)
    joined_at = "SELECT joined_at FROM allocations"
    assert await desk.dialing.value(joined_at) is None
    for _ in range(2):
        answer = await (desk.get() if what == "context" else desk.post({"disposition": "sold"}))
        assert answer.status in (200, 201)
    first = await desk.dialing.value(joined_at)
    assert first is not None
    await desk.get()
    assert await desk.dialing.value(joined_at) == first


async def test_the_calls_context_names_its_lead_direction_and_template(desk: Desk) -> None:
    await desk.dialing.run('UPDATE leads SET payload = \'{"name": "Ada", "template": "reminder"}\'')
    answer = await desk.get()
    assert answer.status == 200
    told = answer.json()
    assert (told["direction"], told["to"], told["template"]) == ("outbound", "+12125550199", "reminder")
    assert told["lead"]["payload"] == {"name": "Ada", "template": "reminder"}
    assert (told["merchant_id"], told["reported"]) == ("m", False)


async def test_an_inbound_calls_context_has_no_lead(desk: Desk) -> None:
    await desk.dialing.run(
        "UPDATE attempts SET direction = 'inbound', lead_id = NULL WHERE id = $1", desk.attempt
    )
    told = (await desk.get()).json()
    assert (told["direction"], told["lead"], told["template"]) == ("inbound", None, None)


async def test_without_the_calls_own_token_context_and_report_are_401(desk: Desk) -> None:
    other = CallKeys.from_secrets(["another secret"]).sign(desk.attempt, desk.call_sid)
    of_another_call = f"{desk.attempt}.{KEYS.sign(desk.attempt, 'CA2')}"
    for token in (f"{desk.attempt}.{other}", of_another_call, "tl_anything", "x"):
        assert (await desk.get(token)).status == 401
        assert (await desk.post({"opt_out": True}, token)).status == 401
    assert (await desk.client.get(desk.path)).status == 401
    count = await desk.dialing.row("SELECT count(*) AS n FROM call_reports")
    assert count["n"] == 0


async def test_a_token_of_a_call_is_no_api_key(desk: Desk) -> None:
    assert (await desk.client.with_key(desk.token).get("/api/v1/leads")).status == 401


async def test_a_report_is_stored_once_and_another_one_refused(desk: Desk) -> None:
    body = {"disposition": "sold", "transcript_ref": "s3://t", "recording_ref": "s3://r", "data": {"n": 1}}
    assert (await desk.post(body)).status == 201
    assert (await desk.post(body)).status == 200
    refused = await desk.post(body | {"disposition": "not sold"})
    assert (refused.status, refused.json()["code"]) == (409, "reported_before")
    kept = await desk.report()
    assert (kept["disposition"], kept["transcript_ref"], kept["recording_ref"]) == (
        "sold",
        "s3://t",
        "s3://r",
    )
    assert (await desk.get()).json()["reported"] is True


async def test_a_report_sent_twice_appends_one_event_to_the_calls_mailbox(desk: Desk) -> None:
    for _ in range(2):
        await desk.post({"disposition": "sold"})
    events = await desk.dialing.row(
        "SELECT count(*) AS n FROM mailbox_events AS e JOIN mailboxes AS m ON m.id = e.mailbox_id"
        " WHERE m.key = $1 AND e.type = 'reported'",
        str(desk.attempt),
    )
    assert events["n"] == 1


@pytest.mark.parametrize(("direction", "listed"), [("outbound", "+12125550199"), ("inbound", "+14155550100")])
async def test_an_opt_out_lists_the_person_on_the_merchants_do_not_call_list(
    desk: Desk, direction: str, listed: str
) -> None:
    await desk.dialing.run(
        "UPDATE attempts SET direction = $2, from_phone = '+14155550100' WHERE id = $1",
        desk.attempt,
        direction,
    )
    assert (await desk.post({"opt_out": True})).status == 201
    entry = await desk.dialing.row("SELECT * FROM do_not_call")
    assert (entry["phone"], entry["reseller_id"], entry["merchant_id"]) == (listed, "r", "m")


async def test_callback_at_is_stored_with_its_time_zone(desk: Desk) -> None:
    wanted = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    assert (await desk.post({"callback_at": wanted.isoformat()})).status == 201
    assert (await desk.report())["callback_at"] == wanted


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"callback_at": "2030-01-01T10:00:00"}, "callback_at"),
        ({"callback_at": 1_900_000_000}, "callback_at"),
        ({"disposition": ""}, "disposition"),
        ({"disposition": "a\x00b"}, "disposition"),
        ({"data": {"a": "\x00"}}, "data"),
        ({"data": {"a": "x" * DATA_BYTES_MAX}}, "data"),
        ({"data": []}, "data"),
        ({"outcome": "sold"}, "outcome"),
        ([], "body"),
    ],
)
async def test_a_report_that_cannot_be_stored_is_refused_by_its_field(
    desk: Desk, body: object, field: str
) -> None:
    answer = await desk.post(body)
    assert answer.status == 422
    assert answer.json()["fields"][0]["field"] == field


async def test_context_and_report_of_an_unknown_call_are_404(desk: Desk) -> None:
    gone = UUID("0197f0a0-0000-7000-8000-000000000001")
    token = f"{gone}.{KEYS.sign(gone, desk.call_sid)}"
    assert (await desk.post({}, token)).status == 404
    assert (await desk.get(token)).status == 404


async def test_a_resumed_agent_reads_the_state_that_the_previous_one_stored(desk: Desk) -> None:
    await desk.give(turn=0)
    told = (await desk.get()).json()
    assert (told["resumed"], told["turn"], told["state"]) == (False, 0, None)

    assert (await desk.save({"step": 1})).status == 200
    assert (await desk.save({"step": 2, "name": "Zoë"})).status == 200
    await desk.give(turn=1)

    told = (await desk.get(desk.token_of(1))).json()
    assert (told["resumed"], told["turn"], told["state"]) == (True, 1, {"step": 2, "name": "Zoë"})


async def test_an_agent_that_lost_its_call_cannot_store_state(desk: Desk) -> None:
    await desk.give(turn=0)
    await desk.save({"step": 1})
    await desk.give(turn=1)

    refused = await desk.save({"step": 9}, turn=0)

    assert (refused.status, refused.json()["code"]) == (409, "call_resumed")
    assert (await desk.get(desk.token_of(1))).json()["state"] == {"step": 1}
    assert (await desk.save({"step": 2}, turn=1)).status == 200
    assert (await desk.save({"step": 9}, turn=0)).status == 409


async def test_without_an_allocation_an_earlier_turn_cannot_overwrite_a_later_state(desk: Desk) -> None:
    assert (await desk.save({"step": 2}, turn=1)).status == 200
    assert (await desk.save({"step": 1}, turn=0)).status == 409
    assert (await desk.get()).json()["state"] == {"step": 2}


@pytest.mark.parametrize("state", [[], "text", {"a": "\x00"}, {"a": "x" * DATA_BYTES_MAX}])
async def test_a_state_that_cannot_be_stored_is_refused(desk: Desk, state: object) -> None:
    assert (await desk.save(state)).status == 422
    assert (await desk.get()).json()["state"] is None


async def test_a_token_of_another_turn_is_401(desk: Desk) -> None:
    key = KEYS.sign(desk.attempt, desk.call_sid, 1)
    for token in (f"{desk.attempt}.2.{key}", f"{desk.attempt}.{key}", f"{desk.attempt}.01.{key}"):
        assert (await desk.get(token)).status == 401
    assert (await desk.get(f"{desk.attempt}.1.{key}")).status == 200


async def test_deleting_an_attempt_deletes_its_state(desk: Desk) -> None:
    await desk.save({"step": 1})
    await desk.dialing.run("DELETE FROM attempts WHERE id = $1", desk.attempt)
    assert (await desk.dialing.row("SELECT count(*) AS n FROM call_states"))["n"] == 0
    assert (await desk.save({"step": 2})).status == 404


async def test_the_first_context_request_sets_joined_at_of_the_allocation(desk: Desk) -> None:
    await desk.give(turn=0)
    assert await desk.joined_at() is None
    await desk.get()
    joined_at = await desk.joined_at()
    assert joined_at is not None
    await desk.post({"disposition": "sold"})
    assert await desk.joined_at() == joined_at, "the first time counts"


async def test_the_first_report_sets_joined_at_of_the_allocation(desk: Desk) -> None:
    await desk.give(turn=0)
    await desk.post({"disposition": "sold"})
    assert await desk.joined_at() is not None


async def test_a_resumed_agents_report_replaces_that_of_the_lost_one(desk: Desk) -> None:
    await desk.give(turn=0)
    assert (await desk.post({"disposition": "hung up"})).status == 201
    await desk.give(turn=1)

    assert (await desk.post({"disposition": "sold"}, desk.token_of(1))).status == 201
    assert (await desk.post({"disposition": "sold"}, desk.token_of(1))).status == 200

    late = await desk.post({"disposition": "hung up", "opt_out": True})
    assert (late.status, late.json()["code"]) == (409, "call_resumed")
    kept = await desk.report()
    assert (kept["disposition"], kept["turn"]) == ("sold", 1)
    listed = await desk.dialing.row("SELECT phone FROM do_not_call")
    assert listed["phone"] == "+12125550199", "who wants no more calls gets none, whoever was told"
    events = await desk.dialing.row("SELECT count(*) AS n FROM mailbox_events WHERE type = 'reported'")
    assert events["n"] == 2
