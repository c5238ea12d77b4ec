"""Hooks of `make docs` (mkdocs.yml). The site needs no network: whatever it shows is in it.

- A folder in the navigation stands for its pages, in their order.
- A link that leaves docs/ leads to a copy of that file, as plain text, in `source/` of the site.
- A page that would load something from another host fails the build.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:[^>]*>"
    r"|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|icon)[^>]*\bhref=\"?https?:[^>]*>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    docs = Path(config.docs_dir)
    for section in config.nav or []:
        for title, entry in section.items():
            if isinstance(entry, str) and entry.endswith("/"):
                pages = sorted(
                    (docs / entry).glob("*.md"), key=lambda page: (page.name != "index.md", page.name)
                )
                section[title] = [f"{entry}{page.name}" for page in pages]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    root = Path(config.docs_dir).parent
    for page in list(files.documentation_pages()):
        for match in LINK.finditer(page.content_string):
            path = outside(page.src_uri, match[2])
            if path and (root / path).exists() and not files.get_file_from_path(copied(path)):
                files.append(File.generated(config, copied(path), content=text(root / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    def inside(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[2])
        if not path or not files.get_file_from_path(copied(path)):
            return match[0]
        return f"{match[1]}{posixpath.relpath(copied(path), posixpath.dirname(page.file.src_uri) or '.')})"

    return LINK.sub(inside, markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    for page in Path(config.site_dir).rglob("*.html"):
        if found := LOADED.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} loads from another host: {found[0]}")


def outside(page: str, target: str) -> str | None:
    """The path from the root of the repository, if a link of this page leaves docs/."""
    if re.match(r"[a-z]+:", target):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.split("/")[0] in ("docs", "..") else path


def copied(path: str) -> str:
    return f"source/{path}.txt"


def text(path: Path) -> str:
    if path.is_dir():
        return "".join(f"{each.name}\n" for each in sorted(path.iterdir()) if each.name != "__pycache__")
    return path.read_text(encoding="utf-8")
