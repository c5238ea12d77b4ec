"""`trunkline plan`: simulates a campaign, without calls and without a database.

trunkline plan people.csv --policy policy.json --channels 50 --map phone:Mobile
"""

from pathlib import Path
from typing import Annotated

import typer

from trunkline.cli.control import given
from trunkline.cli.uploads import Columns, File, Form, format_of


def plan(
    file: File,
    policy: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The calling policy, a file of JSON.")
    ] = None,
    columns: Columns = None,
    start: Annotated[str, typer.Option(help="When it starts, for example 2030-05-01T09:00:00-07:00.")] = "",
    end: Annotated[str, typer.Option(help="When it ends.")] = "",
    channels: Annotated[int, typer.Option(help="The maximum of concurrent calls of its numbers.")] = 10,
    answer_rate: Annotated[float, typer.Option(help="The share of answered calls.")] = 0.5,
    call_s: Annotated[float, typer.Option(help="Seconds that an answered call takes.")] = 120.0,
    ring_s: Annotated[float, typer.Option(help="Seconds that unanswered calls ring.")] = 25.0,
    max_attempts: Annotated[int, typer.Option(help="The maximum number of attempts for each person.")] = 3,
    region: Annotated[str, typer.Option(help="The country of phones without one, for example US.")] = "",
    horizon_days: Annotated[int, typer.Option(help="The number of days to simulate.")] = 60,
    do_not_call: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Phones that are not called, one per line."),
    ] = None,
    form: Form = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Simulate a campaign: calls per hour, its end, and the people who would not be called. No call is placed."""
    from trunkline.cli.planning import run

    wanted = given(
        starts_at=start,
        ends_at=end,
        channels=channels,
        answer_rate=answer_rate,
        call_s=call_s,
        ring_s=ring_s,
        max_attempts=max_attempts,
        default_region=region,
        horizon_days=horizon_days,
    )
    run(file, format_of(file, form), policy, do_not_call, columns or [], wanted, as_json=as_json)
