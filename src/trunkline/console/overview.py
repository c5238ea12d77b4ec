"""The overview: the present state of the platform."""

from trunkline.console import charts, labels
from trunkline.console.charts import ChartSeries
from trunkline.console.page_request import PageRequest, Shown

NUMBERS_MAX = 24
QUEUES_SHOWN = 10
# A slice is five seconds: a rate over two of them is steadier.
RATE_SLICES = 2


async def show(visit: PageRequest) -> Shown:
    overview = await visit.api.get("/overview")
    numbers = await visit.api.get("/numbers", {"limit": NUMBERS_MAX})
    starts, slices = charts.slices(overview)
    dials = charts.rates(overview, starts, slices)
    tones = {name: labels.tone(name) for name in overview["endings"]}
    return Shown(
        "overview.html",
        {
            "overview": overview,
            "numbers": numbers["items"],
            "calls_now": sum(overview["calls"].values()),
            "dials_per_s": sum(each or 0 for each in dials[-RATE_SLICES:]) / RATE_SLICES,
            # Of the last slice in which something was dialled.
            "lateness": next((each for each in reversed(slices) if each and each["p50_s"] is not None), None),
            "pace_chart": charts.time_chart(
                "Dials per second", starts, [ChartSeries("dials", "one", dials)], unit="/s"
            ),
            "lateness_chart": charts.time_chart(
                "How late calls left",
                starts,
                [
                    ChartSeries("p50", "one", [each["p50_s"] if each else None for each in slices]),
                    ChartSeries("p99", "two", [each["p99_s"] if each else None for each in slices]),
                ],
                unit="s",
            ),
            "endings": charts.bars(overview["endings"], tones),
            "queues": overview["queues"][:QUEUES_SHOWN],
        },
    )
