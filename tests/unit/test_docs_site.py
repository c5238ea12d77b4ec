"""The site of docs/: `make docs` checks links and navigation too; this says it without its environment."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("tutorial", "how-to", "reference", "explanation", "decisions", "proof")


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md", navigation)
    folders = re.findall(r"[\w-]+/(?=\n)", navigation)
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted(page for page in pages if not page.startswith(tuple(folders)))


def test_every_page_stands_in_the_folder_of_its_kind() -> None:
    folders = {page.relative_to(DOCS).parts[0] for page in DOCS.rglob("*.md")}
    assert folders == {"index.md", *KINDS}
