"""What goes wrong with embedded engines, in words for the operator."""

from trunkline.errors import TrunklineError


class EmbeddedError(TrunklineError):
    """An embedded engine cannot run. The message is one line that says what is wrong and what to do."""
