"""When a carrier retries a webhook. Each has its own rule, and Twilio and Plivo take retry orders in the URL."""

from functools import lru_cache
from urllib.parse import parse_qsl

from trunkline.telephony.http_exchange import Exchange, HttpReply, NotSent, ReplyLost
from trunkline.telephony.simulator.webhook_client import Timeouts
from trunkline.value import Value


class WebhookRetryRule(Value, frozen=True):
    retries: int = 1
    # ct = could not connect, rt = no answer in time, 4xx and 5xx = by status, all.
    policy: frozenset[str] = frozenset({"ct"})
    timeouts: Timeouts = Timeouts()
    # All tries together.
    total_s: float = 15.0

    def ordered_by(self, url: str) -> "WebhookRetryRule":
        """The orders in the URL's fragment: `#rc=2&rp=all&ct=500&rt=1000&tt=5000`."""
        fragment = url.partition("#")[2]
        return _ordered(self, fragment) if fragment else self

    def applies(self, outcome: Exchange) -> bool:
        match outcome:
            case NotSent():
                kind = "ct"
            case ReplyLost():
                kind = "rt"
            case HttpReply(status=status) if status >= 400:
                kind = "4xx" if status < 500 else "5xx"
            case _:
                return False
        return bool({kind, "all"} & self.policy)


@lru_cache(maxsize=256)  # a client sends the same orders with every call
def _ordered(rule: WebhookRetryRule, fragment: str) -> WebhookRetryRule:
    given = dict(parse_qsl(fragment))
    return WebhookRetryRule(
        retries=min(int(given.get("rc", rule.retries)), 5),
        policy=frozenset(given["rp"].split(",")) if "rp" in given else rule.policy,
        timeouts=Timeouts(
            _seconds(given, "ct", rule.timeouts.connect_s), _seconds(given, "rt", rule.timeouts.read_s)
        ),
        total_s=min(_seconds(given, "tt", rule.total_s), rule.total_s),
    )


def _seconds(given: dict[str, str], name: str, otherwise: float) -> float:
    return int(given[name]) / 1000 if name in given else otherwise


TWILIO = WebhookRetryRule()
PLIVO = WebhookRetryRule(policy=frozenset({"ct", "rt"}), timeouts=Timeouts(2.0, 40.0), total_s=55.0)
NEVER = WebhookRetryRule(retries=0)
EXOTEL = WebhookRetryRule(retries=2, policy=frozenset({"all"}), total_s=45.0)
# No retries, unless the call was ordered with a backoff plan.
VAPI = WebhookRetryRule(retries=0, timeouts=Timeouts(5.0, 20.0), total_s=600.0)
# The request for the assistant of an inbound call must be answered within this time.
VAPI_QUESTION = WebhookRetryRule(retries=0, timeouts=Timeouts(5.0, 7.5), total_s=7.5)
