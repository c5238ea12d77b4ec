"""Enrichments of ended calls: transcripts, data, and recordings as files."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from pydantic import Field

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import not_found
from trunkline.api.models import READ_ERRORS, Out, require_found
from trunkline.api.principal import Principal
from trunkline.api.routes.jobs import jobs_api
from trunkline.store import call_reports, enrichments
from trunkline.store.enrichments import EnrichmentView

router = APIRouter(prefix=f"{API_ROOT}/attempts", tags=["attempts"])

ItemId = Annotated[str, PathParameter(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

# The first bytes of audio files. Other files get no audio content type.
_SOUNDS = (
    (b"RIFF", "audio/wav"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
)


class EnrichmentOut(Out):
    """What was learnt of a call after its end."""

    item_id: str = Field(description="The id of the enrichment.")
    attempt_id: UUID
    status: Literal["ENRICHING", "READY", "DISCARDED"]
    recording_ref: str | None = Field(
        description="The URL or name under which the enricher stored the recording."
    )
    recording_url: str | None = Field(
        description="The path of the recording in this API, if the platform stores it."
    )
    transcript: str | None = Field(description="What was said; null: there is none.")
    data: Any = Field(description="Other data that the enricher collected.")
    created_at: datetime
    updated_at: datetime


class EnrichmentsOut(Out):
    """The enrichments of a call."""

    items: list[EnrichmentOut]


@router.get(
    "/{attempt_id}/enrichments",
    response_model=EnrichmentsOut,
    responses=READ_ERRORS,
    summary="Get the enrichment of a call",
)
async def list_enrichments(attempt_id: UUID, who: ReadKey, api: Deps) -> EnrichmentsOut:
    """By the id of its attempt. Also of inbound calls, which have no lead."""
    return EnrichmentsOut(items=shown(api, await _of_call(api, who, attempt_id)))


@router.get(
    "/{attempt_id}/enrichments/{item_id}/recording",
    response_class=FileResponse,
    responses=READ_ERRORS | {200: {"content": {"audio/*": {"schema": {"type": "string"}}}}},
    summary="The recording of a call",
)
async def get_recording(attempt_id: UUID, item_id: ItemId, who: ReadKey, api: Deps) -> FileResponse:
    """From the data folder, which the worker that wrote the file and the API must share."""
    items = {each.item_id: each for each in await _of_call(api, who, attempt_id)}
    path = _file(api, items[item_id].recording_ref) if item_id in items else None
    if path is None:
        raise not_found("recording")
    return FileResponse(path, media_type=_media_type(path), filename=path.name)


def shown(api: Api, items: list[EnrichmentView]) -> list[EnrichmentOut]:
    return [
        EnrichmentOut(
            item_id=each.item_id,
            attempt_id=each.attempt_id,
            status=each.status,
            recording_ref=each.recording_ref,
            recording_url=_url(api, each),
            transcript=each.transcript,
            data=None if each.data is None else msgspec.json.decode(each.data),
            created_at=each.created_at,
            updated_at=each.updated_at,
        )
        for each in items
    ]


async def _of_call(api: Api, who: Principal, attempt_id: UUID) -> list[EnrichmentView]:
    async with api.store.reading() as connection:
        call = require_found(await call_reports.context(connection, attempt_id), "call")
        if not who.tenant.owns(call.tenant):
            raise not_found("call")
        return await enrichments.for_attempt(connection, who.tenant, attempt_id)


def _url(api: Api, item: EnrichmentView) -> str | None:
    if _file(api, item.recording_ref) is None:
        return None
    return f"{API_ROOT}/attempts/{item.attempt_id}/enrichments/{item.item_id}/recording"


def _file(api: Api, ref: str | None) -> Path | None:
    """A reference may be the name of a file of the platform; others are external."""
    if ref is None or api.deps.jobs is None:
        return None
    try:
        path = jobs_api(api).files.path(ref)
    except ValueError:
        return None
    return path if path.is_file() else None


def _media_type(path: Path) -> str:
    with path.open("rb") as file:
        beginning = file.read(4)
    return next((kind for mark, kind in _SOUNDS if beginning.startswith(mark)), "application/octet-stream")
