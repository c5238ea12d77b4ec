"""A model of one mailbox, small enough to explore every interleaving of append, claim, complete, crash and reclaim.

The steps are those of the code, at the grain at which sessions of Postgres can interleave: a row lock is taken in one
step and let go in another, a statement sees what was committed when it began. `Flaw` takes one sentence out of the
protocol; each flaw must be found by the exploration, or the exploration proves nothing.

What is checked in every reachable state:
- no event took effect twice;
- an idle mailbox has nothing pending, a queued one has something;
- the end, in which every event took effect, can still be reached.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Flaw(StrEnum):
    """A sentence taken out of the protocol."""

    NONE = "none"
    APPEND_MOVES_ONLY_IDLE = "an append locks and counts only if the mailbox is idle"
    COMPLETE_LOOKS_AT_EVENTS = "completion looks for events, as its statement saw them before it got the lock"
    CLAIM_READS_EVENTS = "a claim reads the events in the statement that locks"
    NO_FENCE = "completion does not compare the fence"
    NO_RECLAIM = "a claim takes only what is queued"
    DUPLICATES_COUNT = "a doubled event raises the counter"
    COMPLETE_MARKS_ALL = "completion marks every event that it sees"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one actor: `append 0 begins`, `worker 1 claims`."""

    action: str
    actor: int = 0

    def __str__(self) -> str:
        return f"{self.action} {self.actor}"


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker knows. It forgets everything when it crashes."""

    at: str = "idle"  # idle, looking, claimed, read, deciding, committing
    # Whether its fence is the mailbox's. The number itself would make every reclaim a new state.
    has_fence: bool = False
    processed: int = 0
    appended: int = 0
    names: tuple[str, ...] = ()
    saw: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    status: str = "idle"
    appended: int = 0
    processed: int = 0
    lease_lives: bool = False
    # Who has the row: `a0` an append, `w1` a completing worker.
    lock: str = ""
    # The committed events in their order, and those of them that are marked as processed.
    events: tuple[str, ...] = ()
    marked: frozenset[str] = frozenset()
    # How often each event took effect.
    effects: tuple[tuple[str, int], ...] = ()
    appends: tuple[str, ...] = ()  # todo, open, done
    workers: tuple[Worker, ...] = ()
    crashes_left: int = 0

    def times(self, name: str) -> int:
        return dict(self.effects).get(name, 0)

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(name for name in self.events if name not in self.marked)


@dataclass(frozen=True, slots=True)
class Model:
    """`names` are the events that are appended; the same name twice is a webhook that was delivered twice."""

    names: tuple[str, ...] = ("x", "y", "x")
    workers: int = 2
    crashes: int = 1
    flaw: Flaw = Flaw.NONE

    @property
    def start(self) -> State:
        return State(
            appends=("todo",) * len(self.names),
            workers=(Worker(),) * self.workers,
            crashes_left=self.crashes,
        )

    def steps(self, s: State) -> Iterator[tuple[Step, State]]:
        """Everything that can happen next."""
        for n, at in enumerate(s.appends):
            yield from self._append_steps(s, n, at)
        for n, worker in enumerate(s.workers):
            yield from self._worker_steps(s, n, worker)
        if s.status == "processing" and s.lease_lives:
            yield Step("lease expires"), replace(s, lease_lives=False)

    def complaint(self, s: State) -> str | None:
        """What is wrong with this state."""
        for name in set(self.names):
            if s.times(name) > 1:
                return f"{name} took effect twice"
        if s.status == "idle" and s.pending:
            return f"{', '.join(s.pending)} stranded in an idle mailbox"
        if s.status == "queued" and not s.pending:
            return "queued with nothing to do"
        return None

    def is_end(self, s: State) -> bool:
        return (
            all(at == "done" for at in s.appends)
            and s.status == "idle"
            and all(s.times(name) == 1 for name in self.names)
        )

    def is_claimable(self, s: State) -> bool:
        if s.status == "processing" and self.flaw is Flaw.NO_RECLAIM:
            return False
        return s.status == "queued" or (s.status == "processing" and not s.lease_lives)

    # Append: lock the row, insert what is new, count it; then commit.

    def _append_steps(self, s: State, n: int, at: str) -> Iterator[tuple[Step, State]]:
        careless = self.flaw is Flaw.APPEND_MOVES_ONLY_IDLE and s.status != "idle"
        if at == "todo" and (not s.lock or careless):
            lock = s.lock if careless else f"a{n}"
            opened = "open unlocked" if careless else "open"
            yield Step("append begins", n), replace(s, lock=lock, appends=_put(s.appends, n, opened))
        if at.startswith("open"):
            yield Step("append commits", n), self._appended(s, n, locked=at == "open")
            if s.crashes_left:
                # Its caller was told nothing, and sends the event again.
                yield (
                    Step("append crashes", n),
                    replace(
                        s,
                        lock="" if at == "open" else s.lock,
                        appends=_put(s.appends, n, "todo"),
                        crashes_left=s.crashes_left - 1,
                    ),
                )

    def _appended(self, s: State, n: int, *, locked: bool) -> State:
        name = self.names[n]
        done = replace(s, appends=_put(s.appends, n, "done"), lock="" if locked else s.lock)
        is_new = name not in s.events
        if not locked:
            return replace(done, events=(*s.events, name), appended=s.appended + 1) if is_new else done
        if not is_new and self.flaw is not Flaw.DUPLICATES_COUNT:
            return done
        return replace(
            done,
            events=(*s.events, name) if is_new else s.events,
            appended=s.appended + 1,
            status="queued" if s.status == "idle" else s.status,
        )

    # A worker: claim, read, handle, lock, commit. Each step may be its last.

    def _worker_steps(self, s: State, n: int, worker: Worker) -> Iterator[tuple[Step, State]]:
        match worker.at:
            case "idle":
                yield from self._claims(s, n)
            case "looking":
                yield from self._claims_late(s, n, worker)
            case "claimed":
                names = self._visible(s, worker.processed, worker.appended)
                yield Step("worker reads", n), _worker(s, n, replace(worker, at="read", names=names))
            case "read":
                yield from self._begins_completion(s, n, worker)
                if not s.lock:
                    yield Step("worker fails", n), self._failed(s, n, worker)
            case "deciding" if not s.lock:
                yield Step("worker locks", n), self._locked(s, n, worker)
            case "committing":
                yield Step("worker commits", n), self._completed(s, n, worker)
            case _:
                pass
        if worker.at in ("claimed", "read") and not s.lock and self._owns(s, worker):
            yield Step("worker renews", n), replace(s, lease_lives=True)
        if worker.at != "idle" and s.crashes_left:
            lock = "" if s.lock == f"w{n}" else s.lock
            forgotten = replace(_worker(s, n, Worker()), lock=lock, crashes_left=s.crashes_left - 1)
            yield Step("worker crashes", n), forgotten

    def _claims(self, s: State, n: int) -> Iterator[tuple[Step, State]]:
        if not self.is_claimable(s):
            return
        if self.flaw is Flaw.CLAIM_READS_EVENTS:
            yield Step("worker looks", n), _worker(s, n, Worker("looking", saw=s.pending))
        elif not s.lock:  # a locked row is passed over
            yield Step("worker claims", n), self._claimed(s, n)

    def _claims_late(self, s: State, n: int, worker: Worker) -> Iterator[tuple[Step, State]]:
        if not s.lock and self.is_claimable(s):
            claimed = self._claimed(s, n)
            read = replace(claimed.workers[n], at="read", names=worker.saw)
            yield Step("worker claims", n), _worker(claimed, n, read)

    def _claimed(self, s: State, n: int) -> State:
        stale = replace(s, workers=tuple(replace(worker, has_fence=False) for worker in s.workers))
        claim = Worker("claimed", True, s.processed, s.appended)
        return replace(_worker(stale, n, claim), status="processing", lease_lives=True)

    def _visible(self, s: State, after: int, upto: int) -> tuple[str, ...]:
        return tuple(name for name in s.events[after:upto] if name not in s.marked)

    def _begins_completion(self, s: State, n: int, worker: Worker) -> Iterator[tuple[Step, State]]:
        if self.flaw is Flaw.COMPLETE_LOOKS_AT_EVENTS:
            yield Step("worker looks", n), _worker(s, n, replace(worker, at="deciding", saw=s.pending))
        elif not s.lock:  # or it waits for the lock, and its UPDATE takes the row as it finds it then
            yield Step("worker locks", n), self._locked(s, n, worker)

    def _owns(self, s: State, worker: Worker) -> bool:
        return s.status == "processing" and (worker.has_fence or self.flaw is Flaw.NO_FENCE)

    def _locked(self, s: State, n: int, worker: Worker) -> State:
        if not self._owns(s, worker):
            return _worker(s, n, Worker())  # rolled back: nothing of it is written
        return replace(_worker(s, n, replace(worker, at="committing")), lock=f"w{n}")

    def _completed(self, s: State, n: int, worker: Worker) -> State:
        counts = {**dict(s.effects), **{name: s.times(name) + 1 for name in worker.names}}
        marked = s.marked | set(worker.names)
        if self.flaw is Flaw.COMPLETE_MARKS_ALL:
            marked = s.marked | set(s.events)
        return replace(
            _worker(s, n, Worker()),
            effects=tuple(sorted(counts.items())),
            marked=marked,
            processed=worker.appended,
            status="queued" if self._has_more(s, worker) else "idle",
            lock="",
        )

    def _has_more(self, s: State, worker: Worker) -> bool:
        match self.flaw:
            case Flaw.COMPLETE_LOOKS_AT_EVENTS:
                return bool(set(worker.saw) - set(worker.names))
            case Flaw.APPEND_MOVES_ONLY_IDLE:
                return bool(set(s.pending) - set(worker.names))
            case _:
                return s.appended != worker.appended

    def _failed(self, s: State, n: int, worker: Worker) -> State:
        gone = _worker(s, n, Worker())
        return replace(gone, status="queued") if self._owns(s, worker) else gone


@dataclass(frozen=True, slots=True)
class Explored:
    """Every state that can be reached, with the steps that lead out of it."""

    edges: Mapping[State, tuple[tuple[Step, State], ...]]
    parents: Mapping[State, tuple[State, Step] | None]

    def path(self, to: State) -> list[Step]:
        """A shortest way there."""
        steps: list[Step] = []
        while (parent := self.parents[to]) is not None:
            to, step = parent
            steps.append(step)
        return steps[::-1]


def explore(model: Model) -> Explored:
    edges: dict[State, tuple[tuple[Step, State], ...]] = {}
    parents: dict[State, tuple[State, Step] | None] = {model.start: None}
    queue = deque([model.start])
    while queue:
        state = queue.popleft()
        edges[state] = tuple(model.steps(state))
        for step, reached in edges[state]:
            if reached not in parents:
                parents[reached] = (state, step)
                queue.append(reached)
    return Explored(edges, parents)


def complaints(model: Model, explored: Explored) -> Iterator[tuple[str, list[Step]]]:
    """What is wrong, each with a shortest way to it."""
    for state in explored.edges:
        complaint = model.complaint(state)
        if complaint:
            yield complaint, explored.path(state)
    for state in explored.edges.keys() - _can_end(model, explored):
        yield "the end cannot be reached any more", explored.path(state)


def _can_end(model: Model, explored: Explored) -> set[State]:
    before: dict[State, list[State]] = {}
    for state, steps in explored.edges.items():
        for _, reached in steps:
            before.setdefault(reached, []).append(state)
    found = {state for state in explored.edges if model.is_end(state)}
    queue = deque(found)
    while queue:
        for earlier in before.get(queue.popleft(), ()):
            if earlier not in found:
                found.add(earlier)
                queue.append(earlier)
    return found


def _put(values: tuple[str, ...], n: int, value: str) -> tuple[str, ...]:
    return (*values[:n], value, *values[n + 1 :])


def _worker(s: State, n: int, worker: Worker) -> State:
    return replace(s, workers=(*s.workers[:n], worker, *s.workers[n + 1 :]))
