"""When a carrier sends a webhook again. Each has its own rule, and Twilio and Plivo take orders in the URL."""

from functools import lru_cache
from urllib.parse import parse_qsl

from trunkline.telephony.exchange import Exchange, Lost, NotSent, Reply
from trunkline.telephony.simulator.post import Timeouts
from trunkline.value import Value


class RetryRule(Value, frozen=True):
    retries: int = 1
    # ct = could not connect, rt = no answer in time, 4xx and 5xx = by status, all.
    policy: frozenset[str] = frozenset({"ct"})
    timeouts: Timeouts = Timeouts()

    def ordered_by(self, url: str) -> "RetryRule":
        """The orders in the URL's fragment: `#rc=2&rp=all&ct=500&rt=1000`."""
        fragment = url.partition("#")[2]
        return _ordered(self, fragment) if fragment else self

    def applies(self, outcome: Exchange) -> bool:
        match outcome:
            case NotSent():
                kind = "ct"
            case Lost():
                kind = "rt"
            case Reply(status=status) if status >= 400:
                kind = "4xx" if status < 500 else "5xx"
            case _:
                return False
        return bool({kind, "all"} & self.policy)


@lru_cache(maxsize=256)  # one caller gives the same orders with every call
def _ordered(rule: RetryRule, fragment: str) -> RetryRule:
    given = dict(parse_qsl(fragment))
    return RetryRule(
        retries=min(int(given.get("rc", rule.retries)), 5),
        policy=frozenset(given["rp"].split(",")) if "rp" in given else rule.policy,
        timeouts=Timeouts(int(given.get("ct", "5000")) / 1000, int(given.get("rt", "15000")) / 1000),
    )


TWILIO = RetryRule()
PLIVO = RetryRule(policy=frozenset({"ct", "rt"}))
NEVER = RetryRule(retries=0)
EXOTEL = RetryRule(retries=2, policy=frozenset({"all"}))
# Nothing is sent again, unless the call was ordered with a backoff plan.
VAPI = RetryRule(retries=0, timeouts=Timeouts(5.0, 20.0))
