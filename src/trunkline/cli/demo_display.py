"""The demo's display while it runs, and its report."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trunkline.store.overview import ChannelUse, RunProgress


@dataclass(frozen=True, slots=True)
class Lateness:
    """From the due moment of a lead to the carrier's receipt of its request, in ms."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Lateness | None":
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(_at(ordered, 0.50) * 1000, _at(ordered, 0.99) * 1000)


@dataclass(frozen=True, slots=True)
class Snapshot:
    progress: RunProgress
    channels: list[ChannelUse]
    lateness: Lateness | None
    live: int
    leads: int


def live_view(snapshot: Snapshot) -> RenderableType:
    progress = snapshot.progress
    figures = Table.grid(padding=(0, 3))
    figures.add_row("placed", "live", "finished", "lateness p50", "lateness p99", style="dim")
    late = snapshot.lateness
    figures.add_row(
        str(progress.placed),
        str(snapshot.live),
        f"{progress.finished} / {snapshot.leads}",
        f"{late.p50_ms:.0f} ms" if late else "–",
        f"{late.p99_ms:.0f} ms" if late else "–",
    )
    bar = Table.grid()
    bar.add_row(ProgressBar(total=snapshot.leads, completed=progress.finished, width=60))
    return Group(
        figures, bar, Text(), Text("channels of each number", style="dim"), _channels(snapshot.channels)
    )


def _channels(uses: list[ChannelUse]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for use in uses:
        held = Text("●" * use.held, style="green") + Text(
            "○" * max(0, use.max_channels - use.held), style="dim"
        )
        table.add_row(use.e164, held, f"{use.held}/{use.max_channels}")
    return table


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """The figures of the carrier's ledger and the pods' records, beside the platform's own."""

    leads: int
    finished: int
    outcomes: dict[str, int]
    dials: int
    double_dials: int
    numbers_over: int
    pods_shared: int
    without_agent: int
    lateness: Lateness | None
    took_s: float

    @property
    def is_clean(self) -> bool:
        return self.finished == self.leads and not (
            self.double_dials or self.numbers_over or self.pods_shared or self.without_agent
        )


def summary(verdict: DemoVerdict) -> RenderableType:
    table = Table(title="Summary", title_justify="left", show_header=False)
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(verdict.outcomes.items()))
    table.add_row("leads finished", f"{verdict.finished} of {verdict.leads} in {verdict.took_s:.1f} s")
    table.add_row("outcomes", outcomes or "none")
    table.add_row("dials in the carrier's ledger", str(verdict.dials))
    table.add_row("double dials", _must_be_zero(verdict.double_dials))
    table.add_row("numbers over their channels", _must_be_zero(verdict.numbers_over))
    table.add_row("pods with two calls", _must_be_zero(verdict.pods_shared))
    table.add_row("answered without an agent", _must_be_zero(verdict.without_agent))
    if verdict.lateness:
        table.add_row(
            "lateness p50 / p99", f"{verdict.lateness.p50_ms:.0f} / {verdict.lateness.p99_ms:.0f} ms"
        )
    return table


def _must_be_zero(count: int) -> Text:
    return Text(str(count), style="green" if count == 0 else "bold red")


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
