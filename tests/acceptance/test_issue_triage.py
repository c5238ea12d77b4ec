"""The example: an issue tracker's webhooks, answered."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from examples.issue_triage import github, samples
from examples.issue_triage.__main__ import running, send
from examples.issue_triage.issues import Issue, fold
from examples.issue_triage.responder import KeywordResponder
from examples.issue_triage.tracker import GitHub
from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.mailbox import Event
from trunkline.store.database import Database

SECRET = "It's a Secret to Everybody"
soon = partial(eventually, timeout_s=40)
LOGIN = samples.issue(1, "Login fails", "An error.")


@dataclass
class Thinker:
    """A responder that can be kept thinking, and that crashes when it is told to."""

    asked: list[list[str]] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0

    async def respond(self, issue: Issue, news: Sequence[str]) -> str | None:
        self.asked.append(list(news))
        await self.go_on.wait()
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no idea")
        return f"To {len(news)}: {news[-1]}"


@dataclass
class Board:
    """A tracker that loses its answer once: the comment is there, and nobody knows."""

    posted: list[tuple[str, str]] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    loses_answer: bool = False

    async def comment(self, issue: str, mark: str, body: str) -> None:
        if mark not in self.marks:
            self.marks.add(mark)
            self.posted.append((issue, body))
        if self.loses_answer:
            self.loses_answer = False
            raise ConnectionResetError


@dataclass
class Triage:
    url: str
    database: Database
    thinker: Thinker
    board: Board
    session: ClientSession

    async def webhook(self, event: str, payload: object, secret: str = SECRET) -> int:
        return await send(self.session, self.url, secret, event, payload)

    async def comment(self, number: int, body: str, **more: Any) -> int:
        return await self.webhook(
            "issue_comment", samples.issue_comment("created", LOGIN, number, body, **more)
        )

    async def value(self, statement: str) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(statement)

    async def rest(self) -> None:
        async def is_idle() -> bool:
            return not await self.value(
                "SELECT count(*) FROM trunkline.mailboxes WHERE processing_status <> 'idle'"
            )

        await soon(is_idle)


@pytest.fixture
async def triage(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> AsyncIterator[Triage]:
    engines = Engines(tmp_path, database_url=database_url, redis_url=redis_url)
    thinker, board = Thinker(), Board()
    async with (
        running(engines, thinker, board, SECRET, prefix=key_prefix) as (url, database),
        ClientSession() as session,
    ):
        yield Triage(url, database, thinker, board, session)
        thinker.go_on.set()


async def test_an_opened_issue_gets_one_reply(triage: Triage) -> None:
    triage.thinker.go_on.set()
    assert await triage.webhook("issues", samples.issues("opened", LOGIN)) == 202
    await soon(lambda: triage.board.posted)
    assert triage.board.posted == [("acme/site#1", "To 1: Login fails\n\nAn error.")]
    await triage.rest()
    assert await triage.value("SELECT posted_at IS NOT NULL FROM replies")
    assert await triage.value("SELECT (title, labels[1]) = ('Login fails', 'bug') FROM issues")


async def test_comments_during_a_reply_are_answered_together_in_the_next_one(triage: Triage) -> None:
    await triage.webhook("issues", samples.issues("opened", LOGIN))
    await soon(lambda: triage.thinker.asked)
    for number, body in enumerate(("Version 2", "On a Mac", "Any news?"), 1):
        assert await triage.comment(number, body) == 202
    triage.thinker.go_on.set()
    await soon(lambda: len(triage.board.posted) == 2)
    await triage.rest()
    assert triage.thinker.asked[1:] == [["Version 2", "On a Mac", "Any news?"]]
    assert triage.board.posted[-1] == ("acme/site#1", "To 3: Any news?")
    assert await triage.value("SELECT jsonb_array_length(discussions) FROM issues") == 3


async def test_an_unsigned_or_wrongly_signed_webhook_is_refused(triage: Triage) -> None:
    assert await triage.webhook("issues", samples.issues("opened", LOGIN), secret="wrong") == 401
    async with triage.session.post(triage.url, data=b"{}") as answer:
        assert answer.status == 401
    assert await triage.value("SELECT count(*) FROM trunkline.mailbox_events") == 0


async def test_a_webhook_that_is_delivered_again_is_one_event(triage: Triage) -> None:
    triage.thinker.go_on.set()
    body = json.dumps(samples.issues("opened", LOGIN)).encode()
    headers = {
        github.EVENT: "issues",
        github.DELIVERY: "d1",
        github.SIGNATURE: github.sign(SECRET, body),
    }
    answers = []
    for _ in range(2):
        async with triage.session.post(triage.url, data=body, headers=headers) as answer:
            answers.append((await answer.json())["new"])
    assert answers == [True, False]
    await triage.rest()
    assert len(triage.board.posted) == 1


async def test_webhooks_without_an_issue_event_are_acknowledged_and_not_stored(triage: Triage) -> None:
    of_pull_request = samples.issue_comment("created", {**LOGIN, "pull_request": {"url": "…"}}, 1, "LGTM")
    assert await triage.webhook("ping", samples.ping()) == 200
    assert await triage.webhook("push", {"ref": "refs/heads/main"}) == 200
    assert await triage.webhook("issue_comment", of_pull_request) == 200
    assert await triage.webhook("issues", {"action": "opened"}) == 200
    assert await triage.webhook("issues", [1]) == 400
    assert await triage.value("SELECT count(*) FROM trunkline.mailbox_events") == 0


async def test_bots_are_not_answered(triage: Triage) -> None:
    triage.thinker.go_on.set()
    await triage.comment(7, "To 1: …", by="triage[bot]", kind="Bot")
    await triage.rest()
    assert triage.thinker.asked == []
    assert await triage.value("SELECT discussions -> 0 ->> 'author' FROM issues") == "triage[bot]"


async def test_a_failed_responder_is_retried_with_all_messages(triage: Triage) -> None:
    triage.thinker.failures = 1
    triage.thinker.go_on.set()
    await triage.webhook("issues", samples.issues("opened", LOGIN))
    await soon(lambda: triage.board.posted)
    assert len(triage.thinker.asked) == 2
    assert len(triage.board.posted) == 1


async def test_a_reply_whose_response_was_lost_is_posted_once(triage: Triage) -> None:
    triage.board.loses_answer = True
    triage.thinker.go_on.set()
    await triage.webhook("issues", samples.issues("opened", LOGIN))

    async def is_posted() -> bool:
        return bool(await triage.value("SELECT count(*) FROM replies WHERE posted_at IS NOT NULL"))

    await soon(is_posted)
    assert len(triage.board.posted) == 1


async def test_an_unreadable_event_is_set_aside_and_the_others_are_answered(triage: Triage) -> None:
    await triage.webhook("issues", samples.issues("opened", LOGIN))
    await soon(lambda: triage.thinker.asked)
    broken = samples.issue_comment("created", LOGIN, 1, "lost")
    del broken["comment"]["user"]
    await triage.webhook("issue_comment", broken)
    await triage.comment(2, "found")
    triage.thinker.go_on.set()
    await soon(lambda: len(triage.board.posted) == 2)
    assert triage.thinker.asked[1] == ["found"]
    await triage.rest()
    assert await triage.value("SELECT error FROM trunkline.mailbox_events WHERE error IS NOT NULL") == (
        "unreadable: KeyError: 'user'"
    )


def test_the_signature_matches_githubs_documented_example() -> None:
    expected = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert github.sign(SECRET, b"Hello, World!") == expected
    assert github.is_genuine(SECRET, expected, b"Hello, World!")
    assert not github.is_genuine(SECRET, expected, b"Hello, World")
    assert not github.is_genuine(SECRET, None, b"Hello, World!")
    assert not github.is_genuine(SECRET, "sha256=ü", b"Hello, World!")


def hook(seq: int, event: str, payload: dict[str, Any]) -> Event:
    when = datetime(2030, 5, 15, tzinfo=UTC)
    return Event("acme/site#1", seq, event, {"event": event, "payload": payload}, when)


def test_comments_are_edited_and_removed_by_their_id() -> None:
    def comment(action: str, number: int, body: str) -> dict[str, Any]:
        return samples.issue_comment(action, LOGIN, number, body)

    folded = fold(
        Issue(),
        [
            hook(1, "issue_comment", comment("created", 1, "one")),
            hook(2, "issue_comment", comment("created", 2, "two")),
            hook(3, "issue_comment", comment("edited", 1, "one, better")),
            hook(4, "issue_comment", comment("deleted", 2, "two")),
            hook(5, "issues", samples.issues("closed", {**LOGIN, "state": "closed"})),
        ],
    )
    assert [each.body for each in folded.issue.discussions.values()] == ["one, better"]
    assert folded.news == ("one", "two", "one, better")
    assert (folded.issue.state, folded.parked) == ("closed", ())


async def test_the_keyword_responder_answers_known_keywords_only() -> None:
    answer = KeywordResponder().respond
    bug = await answer(Issue(author="ada"), ["It crashes", "Really"])
    assert bug is not None
    assert "@ada" in bug
    assert "a bug" in bug
    assert "Which version" in bug
    assert "all 2 messages" in bug
    assert await answer(Issue(), ["thanks"]) is None
    assert await answer(Issue(state="closed"), ["It crashes"]) is None


@asynccontextmanager
async def comments_api(existing: list[dict[str, Any]]) -> AsyncIterator[str]:
    """The two calls of GitHub's API that we make."""

    async def get(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer t"
        page, size = int(request.query["page"]), int(request.query["per_page"])
        return web.json_response(existing[(page - 1) * size : page * size])

    async def post(request: web.Request) -> web.Response:
        existing.append(await request.json())
        return web.json_response({}, status=201)

    app = web.Application()
    app.router.add_get("/repos/acme/site/issues/12/comments", get)
    app.router.add_post("/repos/acme/site/issues/12/comments", post)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_reply_that_github_already_shows_is_not_posted_again() -> None:
    existing: list[dict[str, Any]] = [{"body": None}] * 150
    async with comments_api(existing) as api:
        tracker = GitHub("t", api)
        for _ in range(2):
            await tracker.comment("acme/site#12", "triage 7", "Hello")
    assert existing[150:] == [{"body": "Hello\n\n<!-- triage 7 -->"}]


def test_the_demonstration_runs_with_one_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.issue_triage", "--demo", "--data-dir", str(tmp_path / "data")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "── acme/site#1" in done.stdout
    assert "This looks like a wish" in done.stdout
