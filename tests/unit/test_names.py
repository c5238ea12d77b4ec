"""Names: one class name for one thing, log events in one style, retired words stay away, old names still work."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from trunkline import client, old_names
from trunkline.jobs.client import Jobs
from trunkline.jobs.outbox import Outbox
from trunkline.mailbox.inbox import Inbox
from trunkline.telemetry.logs import name_old_event

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
PYTHON = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
CODE = {**PYTHON, **{path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.lua"))}}

# The word that is used instead is in docs/reference/glossary.md.
RETIRED = (
    "poke", "pokes", "poker", "Poker", "nudge", "nudges", "nudger", "Nudger", "doorbell", "bell", "Bell",
    "crew", "Crew", "Surveyor", "LeaseKeeper", "Hold", "Held", "JobFace", "AgentFace", "MerchantFace", "CarrierFace",
    "AccountDesk", "EnrichmentDesk", "WayIn", "Keeping", "Following", "MemoryLost", "CarrierWord",
    "HappeningOut", "LeadWithStoryOut", "keep_what_stays", "closed_unheard", "roomy", "needy", "Express",
    "told_apart", "nobody_told", "keep_carried", "told_by_carrier", "CooldownBook", "AskedLead", "AskList", "AskCall",
    "Witnesses", "FAR_LINES", "put_off", "take_up", "AdoptedCall", "SomeChannels", "line_of_call", "has_surfaced",
    "may_be_adopted", "Untold", "ask_again_after_s", "any_memory", "of_lead", "is_unkept",
    "face_of", "desk", "heard_first", "heard_again", "of_task", "of_handlers", "asked_to_stop", "on_doubt", "look_now",
    "AccountLook", "KeptAgent", "KeptTag", "WebhookHearing", "advance_hearing", "PrecheckWalk", "FlowWalk", "Happening",
    "look_at_all", "look_around", "Checkout", "Loan", "lend", "live_looks", "never_adopt",
    "AgentRoom", "GIVEN_UP", "ResultWriter", "router_keep", "router_room",
    "StreamAsked", "DocumentAsked", "Elsewhere", "admit_stray", "pending_nudges",
)  # fmt: skip
RETIRED_FILES = {
    "crew", "held", "keeper", "surveyor", "poker", "pokes", "nudger", "nudges", "doorbell", "desk", "asking", "visits",
    "words", "frame", "people", "exchange", "origin", "doubt", "vault", "openings", "packs", "frozen", "witnesses",
    "witness", "asked", "returns", "precheck_rooms", "agent_face", "router_face",
    "express", "hot_routes", "at_once", "account_check", "checkout", "live_looks", "precheck_walk", "users",
}  # fmt: skip

# The events that a source document names as they are. `tests/integration/test_jobs_worker.py` holds them.
SOURCE_EVENTS = {"job_claimed", "job_completed", "job_failed"}

# A resource has its name at both ends: what the client hands out, and what the store reads.
BOTH_ENDS = {
    "Agent", "Allocation", "ApiError", "Attempt", "Campaign", "Lead", "Merchant", "Number",
    "Occurrence", "Outcome", "PodSuperseded", "Pool", "Release", "Reminder", "Reopened", "Reseller",
    "TimelineEvent", "UploadReport",
}  # fmt: skip
# Results of handlers, the same idea in two packages that applications import; a protocol beside what fulfils it.
PARALLEL = {"Abandonment", "Done", "Out", "Outgoing", "Page", "Principal", "Server"}


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_not_used_in_code(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b")
    found = [str(path) for path, text in CODE.items() if path.name != "old_names.py" and pattern.search(text)]
    assert found == []


def test_no_module_has_a_retired_name() -> None:
    assert [str(path) for path in PYTHON if path.stem in RETIRED_FILES] == []


def test_a_class_name_names_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, text in PYTHON.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in BOTH_ENDS | PARALLEL} == {}


def events() -> set[str]:
    call = re.compile(r'\b(?:log|bound)\.(?:debug|info|warning|error|exception|critical)\(\s*"([^"\s]+)"')
    return {event for text in PYTHON.values() for event in call.findall(text)}


def test_log_events_are_dotted_but_for_those_of_the_source_documents() -> None:
    assert {event for event in events() if "." not in event} == SOURCE_EVENTS


def test_every_renamed_log_event_is_still_logged() -> None:
    assert set(old_names.LOG_EVENTS) - events() == set()


@pytest.mark.parametrize("cls", [Jobs, Outbox, Inbox])
def test_a_renamed_method_works_under_its_old_name(cls: type[object]) -> None:
    class Spy(cls):  # type: ignore[valid-type,misc]
        def __init__(self) -> None:
            self.woken: list[object] = []

        def wake(self, *args: object) -> None:
            self.woken.append(args)

    for old in old_names.METHODS[cls.__name__]:
        spy = Spy()
        with pytest.warns(DeprecationWarning, match=f"{cls.__name__}.{old} is called wake now"):
            getattr(spy, old)("a", "b")
        assert spy.woken == [("a", "b")]


def test_a_renamed_class_of_the_client_works_under_its_old_name() -> None:
    for old, new in old_names.CLASSES.items():
        with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
            assert getattr(client, old) is getattr(client, new)
    assert not hasattr(client, "NeverThere")


def test_a_renamed_log_event_names_the_old_one() -> None:
    assert name_old_event(None, "warning", {"event": "jobs.lease_lost"}) == {
        "event": "jobs.lease_lost",
        "formerly": "job_lease_lost",
    }
    assert name_old_event(None, "info", {"event": "job_claimed"}) == {"event": "job_claimed"}


def test_every_word_of_the_glossary_is_explained_once() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*([^*]+)\*\* \|", page, re.MULTILINE)
    assert len(words) == len(set(words)) >= 30


def test_every_file_that_the_glossary_names_exists() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+(?:\.py|\.lua|/))`", page)
    places = (SOURCE, ROOT, ROOT / "tests" / "integration")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
