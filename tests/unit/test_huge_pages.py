"""Memory is gathered into huge pages without a change of its content."""

import mmap
import platform
import re
import sys
from pathlib import Path

import pytest

from trunkline.cli import huge_pages
from trunkline.cli.huge_pages import PAGE_BYTES


def in_large_pages() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        found = re.search(r"AnonHugePages:\s+(\d+) kB", rollup.read())
    assert found is not None
    return int(found[1]) * 1024


def kernel() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", platform.release())[:2]))


@pytest.mark.skipif(sys.platform != "linux" or kernel() < (6, 1), reason="the kernel cannot be asked")
def test_gather_moves_memory_into_huge_pages_unchanged() -> None:
    words = bytes(range(256)) * (4 * PAGE_BYTES // 256)
    memory = mmap.mmap(-1, len(words), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(words)
    before = in_large_pages()
    assert huge_pages.gather() >= PAGE_BYTES
    assert in_large_pages() > before
    assert memory[:] == words


def test_gather_does_nothing_without_a_readable_memory_map(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "maps")
    assert huge_pages.gather() == 0
