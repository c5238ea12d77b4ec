"""`trunkline top` says for what a queue waits, and until when."""

from typing import Any

import pytest
from rich.console import Console

from trunkline.cli.top import _queues

QUEUE = {"merchant_id": "m", "pool": "p", "due": 3, "waiting": 5, "first_due_at": "2030-05-01T09:29:58Z"}
AT = "2030-05-01T09:45:00Z"


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        ({"waits_for": None}, "–"),
        ({"waits_for": "no_agents", "waits_until": None}, "no agents"),
        ({"waits_for": "cooldown", "waits_until": AT, "is_until_estimated": False}, f"cooldown, until {AT}"),
        (
            {"waits_for": "channels", "waits_until": AT, "is_until_estimated": True},
            f"channels, until about {AT}",
        ),
    ],
)
def test_top_shows_for_what_a_queue_waits(wait: dict[str, Any], words: str) -> None:
    console = Console(width=200, record=True)
    console.print(_queues([QUEUE | wait]))
    assert f"│ {words} " in console.export_text()
