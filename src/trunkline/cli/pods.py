"""`trunkline pods`: lists pods and their calls, and drains a pod.

trunkline pods list
trunkline pods find CA5b0be82cb0668b70eb404578f6ea2889
trunkline pods drain voice-agent-2
"""

from typing import Annotated, Any

import typer

from trunkline.cli import router
from trunkline.cli.control import ROOT, Context, ControlCommandError, Remote, connect
from trunkline.client.transport import Transport

app = typer.Typer(help="Pods and the calls that have them.", no_args_is_help=True)
app.callback()(connect)

PAGE = 200
_CALL = ("call_sid", "pod_name", "source_pool", "merchant_id", "allocated_at")

app.command("list")(router.pods)
app.command()(router.status)
app.command()(router.calls)
app.command()(router.drain)
app.command()(router.undrain)


@app.command()
def find(ctx: Context, call: Annotated[str, typer.Argument(help="The carrier's id of a call.")]) -> None:
    """The pod of a call. Exits with status 1 if it has none."""
    remote: Remote = ctx.obj
    allocation = remote.ask(lambda api: _find(api, call))
    if allocation is None:
        raise ControlCommandError(f"No pod has the call {call} now.")
    remote.show(allocation, _CALL)


async def _find(api: Transport, call: str) -> dict[str, Any] | None:
    cursor: str | None = "0"
    while cursor is not None:
        page = await api.get(f"{ROOT}/allocations", {"limit": PAGE, "cursor": cursor})
        for each in page["items"]:
            if each["call_sid"] == call:
                return dict(each)
        cursor = page["next_cursor"]
    return None
