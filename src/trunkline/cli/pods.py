"""`trunkline pods`: lists pods and their calls, and drains a pod.

trunkline pods list
trunkline pods find CA5b0be82cb0668b70eb404578f6ea2889
trunkline pods drain voice-agent-2
"""

from typing import Annotated, Any

import typer

from trunkline.cli import router
from trunkline.cli.control import Context, ControlCommandError, api_path, connect
from trunkline.client.transport import Transport

app = typer.Typer(help="Pods and the calls that have them.", no_args_is_help=True)
app.callback()(connect)

PAGE = 200

app.command("list")(router.pods)
app.command()(router.status)
app.command()(router.calls)
app.command()(router.drain)
app.command()(router.undrain)


@app.command()
def find(ctx: Context, call: Annotated[str, typer.Argument(help="The carrier's id of a call.")]) -> None:
    """The pod of a call. Exits with status 1 if it has none."""
    allocation = ctx.obj.ask(lambda api: _find(api, call))
    if allocation is None:
        raise ControlCommandError(f"No pod has the call {call} now.")
    ctx.obj.show(allocation, router.CALL)


async def _find(api: Transport, call: str) -> dict[str, Any] | None:
    cursor: str | None = "0"
    while cursor is not None:
        page = await api.get(api_path("allocations"), {"limit": PAGE, "cursor": cursor})
        for each in page["items"]:
            if each["call_sid"] == call:
                return dict(each)
        cursor = page["next_cursor"]
    return None
