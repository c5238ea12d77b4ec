"""The output of commands. A pipe or a file has no width, so nothing is truncated there."""

from rich.console import Console, ConsoleDimensions

PIPE_WIDTH = 1000


class Out(Console):
    @property
    def size(self) -> ConsoleDimensions:
        own = super().size
        return own if self.is_terminal else ConsoleDimensions(PIPE_WIDTH, own.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


out = Out()
