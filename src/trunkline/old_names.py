"""Names of earlier versions that still work. All of them are in these tables, and nowhere else.

A method keeps its old name on its class (`kept_names`), and a class in its package, both with a `DeprecationWarning`. A
log line whose event was renamed
names the old event in the field `formerly`, so that a search or an alert on the old name still finds it.
"""

import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

C = TypeVar("C")

# Class -> old method -> new method.
METHODS: Mapping[str, Mapping[str, str]] = {
    "Jobs": {"poke": "wake"},
    "Outbox": {"poke": "wake"},
    "Inbox": {"nudge": "wake"},
}

# Old class -> new class, in `trunkline.client`.
CLASSES: Mapping[str, str] = {"Happening": "TimelineEvent"}

# New event -> the event that it was.
LOG_EVENTS: Mapping[str, str] = {
    "account.refresh_failed": "account.look_failed",
    "agents.owners_not_written": "agents.owners_untold",
    "answer.events_not_stored": "answer.not_kept",
    "answer.events_not_stored_yet": "answer.not_kept_yet",
    "attempt.absent_when_queried_again": "attempt.absent_when_asked_again",
    "attempt.written_off": "attempt.given_up",
    "call.enrichment_not_enqueued": "call.enrichment_not_asked",
    "call.hang_up_requested": "call.hang_up_asked",
    "call.reappeared_late": "call.surfaced_late",
    "call.recordings_not_stored": "call.recordings_not_kept",
    "cooldown.begun": "cooldown",
    "dialer.disowned_not_returned": "dialer.disowned_untold",
    "dialer.precheck_not_run": "dialer.not_asked",
    "dialer.refusals_not_returned": "dialer.refusals_untold",
    "jobs.blocks_the_event_loop": "job_blocks_the_event_loop",
    "jobs.claim_undone": "job_claim_undone",
    "jobs.clock_jumped": "job_clock_jumped",
    "jobs.drain_limit_reached": "job_drain_limit_reached",
    "jobs.ended": "job_ended",
    "jobs.ended_after_all": "job_ended_after_all",
    "jobs.ignores_cancellation": "job_ignores_cancellation",
    "jobs.keys_corrected": "job_keys_corrected",
    "jobs.lease_lost": "job_lease_lost",
    "jobs.listener_deaf": "job_listener_deaf",
    "jobs.listener_lost": "job_listener_lost",
    "jobs.raised": "job_raised",
    "jobs.result_held_up": "job_result_held_up",
    "jobs.result_lost": "job_result_lost",
    "jobs.result_refused": "job_result_refused",
    "jobs.results_delayed": "job_results_delayed",
    "jobs.results_unwritten": "job_results_unwritten",
    "jobs.started": "jobs_started",
    "jobs.stopped": "jobs_stopped",
    "jobs.tick": "job_tick",
    "jobs.vacuum_refused": "job_vacuum_refused",
    "jobs.wakeup_lost": "poke_lost",
    "jobs.webhook_endpoint_disabled": "webhook_endpoint_disabled",
    "mailbox.wakeups_lost": "mailbox.nudges_lost",
    "prechecks.moves_not_scheduled": "prechecks.moves_untold",
    "projection.rebuilding": "memory.rebuilding",
    "projection.rebuilt": "memory.rebuilt",
    "router.merchant_tier_imported": "router.merchant_adopted",
    "router.release_not_projected": "router.release_untold",
    "router.valkey_not_updated": "router.valkey_untold",
}


def kept_names(cls: type[C]) -> type[C]:
    """A class decorator: adds the methods of the table under their old names too."""
    for old, new in METHODS[cls.__name__].items():
        setattr(cls, old, _renamed(cls.__name__, old, new))
    return cls


def renamed_class(module: ModuleType, old: str) -> Any:
    """For `__getattr__` of a package: a class of the table by its old name."""
    new = CLASSES.get(old)
    if new is None:
        raise AttributeError(f"module {module.__name__!r} has no attribute {old!r}")
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=3)
    return getattr(module, new)


def _renamed(cls: str, old: str, new: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        warnings.warn(f"{cls}.{old} is called {new} now", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **options)

    call.__name__ = old
    return call
