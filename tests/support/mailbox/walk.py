"""Walks through the model of a mailbox on Postgres itself: each step is taken by the code, each actor is a session.

After every step the database must be in the state that the model is in. `cover` finds walks through every transition;
`waits` finds the moments in which one actor waits for the row of another, where snapshots grow old.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

from tests.support.mailbox.model import Explored, Model, State, Step
from tests.support.mailbox.world import MailboxWorld, names
from tests.support.waiting import eventually
from trunkline.store import mailboxes
from trunkline.store.database import Connection
from trunkline.store.mailboxes import ClaimedMailbox, NewEvent

Edge = tuple[State, Step, State]

EFFECTS = "CREATE TABLE effects (kind text, name text)"


def cover(model: Model, explored: Explored) -> list[list[Edge]]:
    """Walks from the start that pass through every transition at least once. Which worker is which is all the same."""
    left: set[Hashable] = {
        _essence(state, step) for state, steps in explored.edges.items() for step, _ in steps
    }
    walks: list[list[Edge]] = []
    while left:
        walk: list[Edge] = []
        state = model.start
        while way := _way_to_something_left(explored, state, left):
            walk += way
            left -= {_essence(before, step) for before, step, _ in way}
            state = walk[-1][2]
        walks.append(walk)
    return walks


def _essence(state: State, step: Step) -> tuple[Hashable, ...]:
    actor = state.workers[step.actor] if step.action.startswith("worker") else step.actor
    lock = "w" if state.lock.startswith("w") else state.lock
    return replace(state, workers=tuple(sorted(state.workers, key=repr)), lock=lock), step.action, actor


def _way_to_something_left(explored: Explored, start: State, left: set[Hashable]) -> list[Edge]:
    ways: dict[State, list[Edge]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for step, reached in explored.edges[state]:
            if _essence(state, step) in left:
                return [*ways[state], (state, step, reached)]
            if reached not in ways:
                ways[reached] = [*ways[state], (state, step, reached)]
                queue.append(reached)
    return []


def waits(model: Model, explored: Explored) -> Iterator[tuple[list[Step], Edge, Edge]]:
    """Every moment in which somebody holds the row, lets go, and somebody takes it who could have waited for it: the
    way there, the step that lets go, and the step that takes it."""
    seen: set[Hashable] = set()
    for state, steps in explored.edges.items():
        for step, freed in steps:
            if not state.lock or freed.lock:
                continue
            for taking, reached in explored.edges[freed]:
                what = _essence(state, step), _essence(freed, taking)[1:]
                if _could_wait(state, taking) and what not in seen:
                    seen.add(what)
                    yield explored.path(state), (state, step, freed), (freed, taking, reached)


def _could_wait(state: State, step: Step) -> bool:
    match step.action:
        case "append begins":
            return state.appends[step.actor] == "todo"
        case "worker locks":
            return state.workers[step.actor].at == "read"
        case _:
            return False


class Walker:
    """One mailbox, whose actors are sessions."""

    def __init__(self, world: MailboxWorld, model: Model, kind: str, *, copies: int = 1):
        """An event is appended alone and its mailbox claimed by name, each by a way of its own; or, in several copies,
        it is appended as a batch is, and claimed as the sweep does (of two) or by name among others (of three)."""
        self._world = world
        self._copies = copies
        self._model = model
        self._kind = kind
        self._sessions: dict[str, tuple[Any, Any]] = {}
        self._claims: dict[int, ClaimedMailbox] = {}
        self._expires_when_unlocked = False

    async def __aenter__(self) -> "Walker":
        return self

    async def __aexit__(self, *_: object) -> None:
        for actor in list(self._sessions):
            await self._roll_back(actor)

    async def take(self, edge: Edge) -> None:
        before, step, after = edge
        await self._act(before, step, after)
        if not after.lock and self._expires_when_unlocked:
            await self._expire()
        await self._compare(after, f"after {step} in {before}")
        if after.lock or not self._model.is_claimable(after):
            assert await self._claim() == [], f"after {step} in {before}"

    async def go(self, way: list[Step]) -> None:
        """From the start to where these steps lead."""
        state = self._model.start
        for step in way:
            reached = dict(self._model.steps(state))[step]
            await self.take((state, step, reached))
            state = reached

    async def wait_for(self, freeing: Edge, taking: Edge) -> None:
        """The second step is begun before the first is taken, and waits for it if it has to."""
        waiting = asyncio.create_task(self._act(*taking))

        async def begun() -> bool:
            return waiting.done() or await self._world.waiting_for_a_lock()

        await eventually(begun)
        await self._act(*freeing)
        await waiting
        await self._compare(taking[2], f"{taking[1]} waited for {freeing[1]} in {freeing[0]}")
        # What it made of the row shows when it commits.
        of_actor = f"{taking[1].action.split()[0]} commits"
        for step, reached in self._model.steps(taking[2]):
            if (step.action, step.actor) == (of_actor, taking[1].actor):
                await self.take((taking[2], step, reached))

    async def _act(self, before: State, step: Step, after: State) -> None:
        n = step.actor
        match step.action:
            case "append begins":
                await mailboxes.append(await self._open(f"a{n}"), [self._event(n)] * self._copies)
            case "append commits":
                await self._commit(f"a{n}")
            case "append crashes":
                await self._roll_back(f"a{n}")
            case "worker claims":
                [self._claims[n]] = await self._claim()
            case "worker reads":
                # The code reads in the same call, in a statement of its own, up to the counter that it claimed. What
                # comes in between makes no difference to a worker that still owns the mailbox, and the other cannot
                # write anything.
                if before.workers[n].has_fence:
                    assert tuple(names([self._claims[n]])) == after.workers[n].names
            case "worker locks":
                await self._lock(n, is_lost=after.workers[n].at == "idle")
            case "worker commits":
                await self._commit(f"w{n}")
            case "worker crashes":
                await self._roll_back(f"w{n}")
            case "worker fails":
                await self._fail(n)
            case "worker renews":
                await self._renew(n)
            case "lease expires":
                self._expires_when_unlocked = True
            case unknown:
                raise AssertionError(unknown)

    def _event(self, n: int) -> NewEvent:
        name = self._model.names[n]
        return NewEvent(self._kind, "k", name, "happened", {"name": name})

    async def _claim(self) -> list[ClaimedMailbox]:
        keys = [["k"], None, ["k", "another"]][self._copies - 1]
        async with self._world.database.connection() as conn:
            return await mailboxes.claim(
                conn, self._kind, keys, limit=len(keys or "1"), worker="w", lease_s=3600, events_max=100
            )

    async def _lock(self, n: int, *, is_lost: bool) -> None:
        claim, tx = self._claims[n], await self._open(f"w{n}")
        await tx.executemany(
            "INSERT INTO effects VALUES ($1, $2)", [(self._kind, name) for name in names([claim])]
        )
        completed = await mailboxes.complete(tx, [claim])
        assert (completed == {}) is is_lost
        if is_lost:
            await self._roll_back(f"w{n}")

    async def _fail(self, n: int) -> None:
        async with self._world.database.connection() as conn:
            await mailboxes.fail(conn, self._claims[n].claim, "failed", failures_max=1000, delay_s=0)

    async def _renew(self, n: int) -> None:
        async with self._world.database.connection() as conn:
            assert not await mailboxes.renew(conn, self._kind, [self._claims[n].claim], lease_s=3600)
        self._expires_when_unlocked = False

    async def _expire(self) -> None:
        """Time needs no lock; this stand-in for it does."""
        self._expires_when_unlocked = False
        await self._world.value(
            """UPDATE mailboxes SET claimable_at = now() - interval '1 s'
               WHERE kind = $1 AND processing_status = 'processing'""",
            self._kind,
        )

    async def _compare(self, state: State, where: str) -> None:
        [row] = await self._world.rows(
            """SELECT coalesce(max(processing_status), 'idle') AS status,
                      coalesce(max(appended), 0) AS appended, coalesce(max(processed), 0) AS processed,
                      coalesce(bool_or(claimable_at > now()), false) AS lease_lives,
                      ARRAY(SELECT dedupe_key FROM mailbox_events
                            WHERE mailbox_id = max(m.id) ORDER BY seq) AS events,
                      ARRAY(SELECT dedupe_key FROM mailbox_events
                            WHERE mailbox_id = max(m.id) AND processed_at IS NULL ORDER BY seq) AS pending,
                      ARRAY(SELECT name FROM effects WHERE kind = $1 ORDER BY name) AS effects
               FROM mailboxes AS m WHERE kind = $1""",
            self._kind,
        )
        assert row["status"] == state.status, where
        assert (row["appended"], row["processed"]) == (state.appended, state.processed), where
        assert tuple(row["events"]) == state.events, where
        assert tuple(row["pending"]) == state.pending, where
        assert row["effects"] == [name for name, times in state.effects for _ in range(times)], where
        if state.status == "processing" and not self._expires_when_unlocked:
            assert row["lease_lives"] == state.lease_lives, where

    async def _open(self, actor: str) -> Connection:
        connection = await self._world.database.pool.acquire()
        transaction = connection.transaction()
        await transaction.start()
        self._sessions[actor] = connection, transaction
        return connection

    async def _commit(self, actor: str) -> None:
        connection, transaction = self._sessions.pop(actor)
        await transaction.commit()
        await self._world.database.pool.release(connection)

    async def _roll_back(self, actor: str) -> None:
        """Nothing, for an actor that has no transaction open."""
        if actor in self._sessions:
            connection, transaction = self._sessions.pop(actor)
            await transaction.rollback()
            await self._world.database.pool.release(connection)
