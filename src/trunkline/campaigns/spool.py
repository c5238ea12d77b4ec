"""A campaign's file, stored on disk until all of it has proven readable: no file is half loaded.

Memory holds one block. The file is read twice: once as it arrives, for its encoding, its header and its syntax, and
once for its leads. A row that is wrong in itself does not refuse the others; the load reports it.
"""

import codecs
from collections.abc import AsyncIterator
from tempfile import TemporaryFile

from trunkline.leads.bulk import Turns
from trunkline.leads.uploads import BrokenUpload, Rows

BLOCK_BYTES = 64 * 1024
ENCODINGS = ("utf-8", "utf-16", "latin-1", "windows-1252")


class Spool:
    """The bytes of an upload, as UTF-8."""

    def __init__(self, encoding: str, check: Rows, rows_max: int):
        self._file = TemporaryFile()  # noqa: SIM115 (closed with this)
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._encoding = encoding
        self._check = check
        self._rows_max = rows_max
        self._lines = 0
        self.rows = 0

    async def take(self, blocks: AsyncIterator[bytes]) -> None:
        """All of the file, or `BrokenUpload`."""
        turns, is_first = Turns(), True
        async for block in blocks:
            await turns.next()
            if is_first and block:
                is_first = False
                self._refuse_other_encodings(block)
            self._add(self._decoded(block))
        self._add(self._decoded(b"", final=True), is_end=True)

    async def blocks(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(BLOCK_BYTES):
            yield block

    def close(self) -> None:
        self._file.close()

    def _add(self, piece: bytes, *, is_end: bool = False) -> None:
        self._file.write(piece)
        self._lines += piece.count(b"\n")
        self.rows += sum(1 for _ in self._check.read(piece, is_end=is_end))
        if self.rows > self._rows_max:
            raise BrokenUpload("too_many_rows", f"An upload has at most {self._rows_max} rows.")

    def _decoded(self, block: bytes, *, final: bool = False) -> bytes:
        try:
            return self._decoder.decode(block, final).encode()
        except UnicodeDecodeError as error:
            line = self._lines + block[: error.start].count(b"\n") + 1
            raise BrokenUpload(
                "bad_encoding",
                f"The file is not {self._encoding}: see line {line}. Save it as UTF-8, or say what it is with "
                f"`encoding`: {', '.join(ENCODINGS)}. Nothing was taken in.",
            ) from None

    def _refuse_other_encodings(self, block: bytes) -> None:
        if self._encoding == "utf-8" and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise BrokenUpload(
                "bad_encoding",
                "The file is UTF-16. Save it as UTF-8, or say `encoding=utf-16`. Nothing was taken in.",
            )
