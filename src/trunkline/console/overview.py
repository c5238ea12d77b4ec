"""The overview: what goes on now, and whether it goes well."""

from typing import Any

from trunkline.console import charts, words
from trunkline.console.charts import Series
from trunkline.console.visits import Shown, Visit

NUMBERS_MAX = 24
QUEUES_SHOWN = 10
# One slice is five seconds: a rate over two of them does not jump.
RATE_SLICES = 2


async def show(visit: Visit) -> Shown:
    overview = await visit.api.get("/overview")
    numbers = await visit.api.get("/numbers", {"limit": NUMBERS_MAX})
    starts, slices = charts.slices(overview)
    dials = [(each["dials"] if each else 0) / overview["slice_s"] for each in slices]
    tones = {name: words.tone(name) for name in overview["endings"]}
    return Shown(
        "overview.html",
        {
            "overview": overview,
            "numbers": numbers["items"],
            "calls_now": sum(overview["calls"].values()),
            "dials_per_s": sum(dials[-RATE_SLICES:]) / RATE_SLICES,
            "lateness": _last_lateness(slices),
            "pace_chart": charts.time_chart(
                "Dials per second", starts, [Series("dials", "one", dials)], unit="/s"
            ),
            "lateness_chart": charts.time_chart(
                "Due to dial",
                starts,
                [
                    Series("p50", "one", [each["p50_s"] if each else None for each in slices]),
                    Series("p99", "two", [each["p99_s"] if each else None for each in slices]),
                ],
                unit="s",
            ),
            "endings": charts.bars(overview["endings"], tones),
            "queues": overview["queues"][:QUEUES_SHOWN],
        },
    )


def _last_lateness(slices: list[Any]) -> Any:
    """Of the last slice in which something was dialled."""
    return next((each for each in reversed(slices) if each and each["p50_s"] is not None), None)
