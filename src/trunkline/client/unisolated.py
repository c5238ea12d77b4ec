"""Logs and counts every call that got no pod of its own, with the reason.

A router that is away, or that refuses the key, must not look like a time without calls. The counts are an object of
this library, and a Prometheus metric too if prometheus_client is installed.
"""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

log = logging.getLogger(__name__)

METRIC = "trunkline_client_unisolated_calls"

# The result for the call: the fallback URL, the busy message, or None from `allocate_pod`.
UnisolatedAnswer = Literal["fallback", "busy", "none"]

# What to check, by reason. A refusal is `refused_<status>`.
HINTS: Mapping[str, str] = {
    "isolation_disabled": "ENABLE_VOICE_AGENT_POD_ISOLATION is not true",
    "circuit_open": "the router failed too often: the circuit breaker is open for SMART_ROUTER_CB_RECOVERY_TIMEOUT",
    "percentage_zero": "SMART_ROUTER_PERCENTAGE is 0, so SMART_ROUTER_MERCHANTS does not count either",
    "outside_percentage": "the merchant is outside SMART_ROUTER_PERCENTAGE",
    "not_listed": "the merchant is not in SMART_ROUTER_MERCHANTS",
    "flags_unreadable": "the rollout flags cannot be read",
    "router_unavailable": "the router at SMART_ROUTER_BASE_URL did not answer",
    "no_pods_available": "no pod is free",
    "answer_unreadable": "what answers at SMART_ROUTER_BASE_URL is no router",
    "refused_401": "the router does not know the key in SMART_ROUTER_API_KEY",
    "refused_403": "the key in SMART_ROUTER_API_KEY is not the platform's, or lacks the scope router",
}


class UnisolatedCalls:
    """Counts by reason and answer. All clients of a process share one, and so do its threads."""

    def __init__(self, metric: Any = None):
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, UnisolatedAnswer]] = Counter()
        self._metric = metric

    @property
    def total(self) -> int:
        with self._lock:
            return self._counts.total()

    def by_reason(self) -> dict[str, int]:
        with self._lock:
            counts: Counter[str] = Counter()
            for (reason, _), count in self._counts.items():
                counts[reason] += count
            return dict(counts)

    def by_answer(self) -> dict[UnisolatedAnswer, int]:
        with self._lock:
            counts: Counter[UnisolatedAnswer] = Counter()
            for (_, answer), count in self._counts.items():
                counts[answer] += count
            return dict(counts)

    def record(self, call_sid: str, provider: str, reason: str, answer: UnisolatedAnswer) -> None:
        with self._lock:
            self._counts[reason, answer] += 1
        if self._metric is not None:
            self._metric.labels(reason=reason, answer=answer).inc()
        hint = HINTS.get(reason, "see the router's own log")
        log.warning(
            "call %s (%s) is not isolated: %s (%s); answered with %s",
            call_sid,
            provider or "no provider",
            reason,
            hint,
            answer,
        )


def _metric() -> Any:
    """None where prometheus_client is not installed: the base install does without it."""
    try:
        from prometheus_client import Counter as Metric
    except ImportError:
        return None
    help_text = "Calls that got no pod of their own, by the reason and by what the caller got instead."
    return Metric(METRIC, help_text, ["reason", "answer"])


UNISOLATED = UnisolatedCalls(_metric())
