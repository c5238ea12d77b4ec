"""Numbers with a fixed behaviour: `+1 500 555 CC nn`. CC selects the behaviour, nn is free, so each has a hundred."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from trunkline.telephony.simulator.behaviour import Fate
from trunkline.telephony.simulator.faults import ReplyFault, WebhookFault

_NUMBER = re.compile(r"^\+1500555(\d\d)(\d\d)$")


@dataclass(frozen=True, slots=True)
class Magic:
    fate: Fate
    reply: ReplyFault | None = None
    webhook: WebhookFault | None = None


_ANSWERS = Fate("answer", ring_s=4.0, talk_s=40.0)

MAGIC: Mapping[str, Magic] = {
    "10": Magic(_ANSWERS),
    "11": Magic(Fate("busy", ring_s=2.0, talk_s=0.0)),
    "12": Magic(Fate("no_answer", ring_s=0.0, talk_s=0.0)),
    "13": Magic(Fate("failed", ring_s=0.0, talk_s=0.0)),
    "14": Magic(Fate("answer", ring_s=4.0, talk_s=40.0, machine=True)),
    "15": Magic(Fate("answer", ring_s=4.0, talk_s=1.0, is_patient=False)),
    "16": Magic(Fate("answer", ring_s=4.0, talk_s=float("inf"))),
    "17": Magic(Fate("answer", ring_s=float("inf"), talk_s=0.0)),
    "20": Magic(_ANSWERS, reply=ReplyFault.SLOW),
    "21": Magic(_ANSWERS, reply=ReplyFault.ERROR_AFTER_DIAL),
    "22": Magic(_ANSWERS, reply=ReplyFault.REPLY_LOST),
    "23": Magic(_ANSWERS, reply=ReplyFault.RESET_AFTER_DIAL),
    "24": Magic(_ANSWERS, reply=ReplyFault.GARBAGE_AFTER_DIAL),
    "25": Magic(_ANSWERS, reply=ReplyFault.WEBHOOK_FIRST),
    "30": Magic(_ANSWERS, reply=ReplyFault.THROTTLED),
    "31": Magic(_ANSWERS, reply=ReplyFault.ERROR_UNDIALLED),
    "32": Magic(_ANSWERS, reply=ReplyFault.RESET_UNDIALLED),
    "33": Magic(_ANSWERS, reply=ReplyFault.REDIRECT_UNDIALLED),
    "40": Magic(_ANSWERS, webhook=WebhookFault.LOST),
    "41": Magic(_ANSWERS, webhook=WebhookFault.DOUBLED),
    "42": Magic(_ANSWERS, webhook=WebhookFault.REORDERED),
    "43": Magic(_ANSWERS, webhook=WebhookFault.LATE),
}

# Twilio's own magic numbers for test credentials, and the code it refuses them with.
REFUSALS: Mapping[str, int] = {
    "+15005550001": 21211,  # not a valid number
    "+15005550002": 21214,  # no route to it
    "+15005550003": 21215,  # no permission for that country
    "+15005550004": 21216,  # on the carrier's own block list
}


@lru_cache(maxsize=4096)  # called with every webhook of a call
def magic(to: str) -> Magic | None:
    match = _NUMBER.match(to)
    return MAGIC.get(match.group(1)) if match else None
