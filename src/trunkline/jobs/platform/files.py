"""Files that jobs write: recordings and exports, in a folder of the platform. A file appears complete or not at all."""

import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from trunkline.handlers import in_thread

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class FileTooLarge(ValueError):
    pass


class Draft:
    """A file that is being written, not yet visible under its name."""

    def __init__(self, file: BinaryIO, bytes_max: int):
        self._file = file
        self._bytes_max = bytes_max
        self.bytes = 0

    async def write(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.bytes > self._bytes_max:
            raise FileTooLarge(f"more than {self._bytes_max} bytes")
        await in_thread(self._file.write, chunk)


class FileStore:
    """A folder. An object store would have the same methods."""

    def __init__(self, folder: Path):
        self._folder = folder

    def path(self, name: str) -> Path:
        """The path of a file. A name has no separators: it cannot lead out of the folder."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a file")
        return self._folder / name

    @asynccontextmanager
    async def draft(self, name: str, *, bytes_max: int = 2**40) -> AsyncIterator[Draft]:
        """Write a file. It appears under its name at the end of the block, unless that fails."""
        place = self.path(name)
        temporary = place.with_name(f".{name}.{token_hex(4)}")
        file = await in_thread(self._open, temporary)
        try:
            with file:
                yield Draft(file, bytes_max)
                await in_thread(_sync, file)
            await in_thread(temporary.replace, place)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> bool:
        """Whether there was such a file."""
        try:
            self.path(name).unlink()
        except (ValueError, FileNotFoundError):
            return False
        return True

    def remove_older(self, beginning: str, age_s: float) -> int:
        """Remove files whose names begin with `beginning` and that did not change for `age_s`."""
        removed = 0
        for place in self._folder.glob(f"{beginning}*") if self._folder.is_dir() else ():
            try:
                if place.is_file() and time.time() - place.stat().st_mtime > age_s:
                    place.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # another process was faster
        return removed

    def _open(self, place: Path) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place.open("wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
