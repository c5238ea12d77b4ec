"""The entry point of `trunkline`. The base install has the client and the agent library, and this command without a
platform, which prints what to install."""

import sys

NEEDS_SERVER = """\
trunkline: this is the base install: the client (trunkline.client) and the agent library (trunkline.agent).
The command line and the platform come with: pip install 'trunkline[server]'
With the embedded engines, for `trunkline up`: pip install 'trunkline[embedded]'
With the simulated carrier, for `trunkline demo` and `trunkline simulator`: pip install 'trunkline[demo]'"""


def main() -> None:
    try:
        from trunkline.cli.main import main as run
    except ModuleNotFoundError as error:
        # A missing module of trunkline itself is a bug, and gets its traceback.
        if error.name is None or error.name.partition(".")[0] == "trunkline":
            raise
        print(f"{NEEDS_SERVER}\n({error.name} is not installed.)", file=sys.stderr)
        sys.exit(1)
    run()
