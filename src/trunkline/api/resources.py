"""What the routes of plain resources share: their bodies, and reading them by key or page by page."""

from collections.abc import Callable, Collection
from dataclasses import Field, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args

from fastapi import APIRouter
from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from trunkline.api.auth import API_ROOT
from trunkline.api.deps import Api
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, require_found
from trunkline.api.paging import Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.store.tables import Key, Table


class Routes(APIRouter):
    """The routes under one path of the API. Each documents the errors that its method can have, beside its own."""

    def __init__(self, path: str, tag: str):
        super().__init__(prefix=f"{API_ROOT}{path}", tags=[tag])

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        errors = {"GET": READ_ERRORS, "DELETE": DELETE_ERRORS}.get(options["methods"][0], WRITE_ERRORS)
        options["responses"] = errors | (options["responses"] or {})
        super().add_api_route(path, endpoint, **options)


class _Shape(Protocol):
    """A dataclass, as `dataclasses.fields` takes it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


B = TypeVar("B", bound=_Shape)
T = TypeVar("T")


class Sent(Generic[B]):
    """A request body, and the names of the fields that the request has. Pydantic would read a dataclass as the body
    itself."""

    def __init__(self, value: B, names: frozenset[str]):
        self.value = value
        self.names = names

    def fields(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """The fields that the request has. An omitted one has its default in `value`."""
        wanted = self.names.difference(without)
        return {
            each.name: getattr(self.value, each.name) for each in fields(self.value) if each.name in wanted
        }

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(_sent, handler(get_args(source)[0]))


def _sent(data: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Sent[Any]:
    return Sent(validate(data), frozenset(data))


def extended(shape: type[B], value: Any, **more: Any) -> B:
    """`value` as a shape that adds these fields. Fields that the shape does not have are left out."""
    names = [each.name for each in fields(shape) if each.name not in more]
    return shape(**{name: getattr(value, name) for name in names}, **more)


async def get_one(api: Api, who: Principal, table: Table[T], key: Key, thing: str) -> T:
    async with api.store.reading() as connection:
        return require_found(await table.get(connection, who.tenant, key), thing)


async def list_page(
    api: Api, who: Principal, table: Table[T], query: PageQuery, *filters: object, name: str
) -> Page[T]:
    """`name` is the list's in its cursors."""
    cursors = Cursors(name, who, query)
    start = cursors.start(table.start)
    async with api.store.reading() as connection:
        rows = await table.page(connection, who.tenant, *filters, start=start, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda row: getattr(row, table.key))
