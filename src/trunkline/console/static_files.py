"""Style, script and icon. Their names contain a hash of their content, so that browsers cache them until they
change."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trunkline.console.page_request import ROOT

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HASH_LENGTH = 12


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    version: str
    media_type: str


class StaticFiles:
    def __init__(self) -> None:
        folder = files("trunkline.console") / "static"
        self._files: dict[str, _File] = {}
        for entry in folder.iterdir():
            content = entry.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:HASH_LENGTH]
            self._files[entry.name] = _File(content, version, TYPES[entry.name.rpartition(".")[2]])

    def address(self, name: str) -> str:
        return f"{ROOT}/static/{name}?v={self._files[name].version}"

    async def serve(self, request: Request) -> Response:
        file = self._files.get(request.path_params["name"])
        if file is None:
            return PlainTextResponse("There is no such file.", 404)
        is_current = request.query_params.get("v") == file.version
        kept = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return Response(file.content, media_type=file.media_type, headers={"Cache-Control": kept})
