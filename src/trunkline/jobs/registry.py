"""Job types: their names, payload types, policies and handlers.

    @job("send_report", Policy(max_attempts=5))
    async def send_report(report: Report, run: Run) -> Done: ...

    await outbox.enqueue(tx, send_report, Report(day))

A type is declared where it is enqueued and where it runs. For a handler that needs more than its payload, make a
`JobType` without one and add it with the bound method of an object to the worker's registry.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, get_type_hints

import msgspec

from trunkline.errors import TrunklineError
from trunkline.handlers import refusal
from trunkline.jobs.outcomes import Outcome, Policy
from trunkline.model import new_id
from trunkline.schema.queues import UNIQUE_KEY_MAX
from trunkline.store.jobs import NewJob
from trunkline.store.tenants import PLATFORM, Tenant

if TYPE_CHECKING:
    from trunkline.jobs.run import Run

P = TypeVar("P")
Handler = Callable[[P, "Run"], Awaitable[Outcome | None]]

# A payload refers to the data of the job, and does not contain it.
PAYLOAD_BYTES_MAX = 256 * 1024

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_encode = msgspec.json.Encoder().encode


class InvalidJob(TrunklineError):
    """The job was not enqueued, and the caller's transaction is untouched. The message says what to do instead."""


class UnknownJobType(InvalidJob):
    """No type of this name is declared."""


class PayloadRefused(InvalidJob):
    """The payload cannot be written as JSON, does not fit its type, or is too large."""


class JobOptions(TypedDict, total=False):
    """The options of a job beside its payload, as `JobType.new` takes them."""

    run_at: datetime | None
    priority: int | None
    unique_key: str | None
    concurrency_key: str | None
    max_attempts: int | None
    tenant: Tenant


class JobType(Generic[P]):
    def __init__(
        self,
        name: str,
        payload: type[P],
        policy: Policy,
        handler: "Handler[P] | None" = None,
        *,
        over_http: bool = False,
    ):
        if not _NAME.fullmatch(name):
            raise InvalidJob(
                f"{name!r} is no name for a job type: up to 50 small letters, digits and underscores"
            )
        self.name = name
        self.policy = policy
        self.handler = handler
        # Whether a tenant's key may enqueue it: then its handler must not trust the payload.
        self.over_http = over_http
        self._decoder = msgspec.json.Decoder(payload)

    def __repr__(self) -> str:
        return f"JobType({self.name!r})"

    def new(
        self,
        payload: P,
        *,
        run_at: datetime | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        concurrency_key: str | None = None,
        max_attempts: int | None = None,
        tenant: Tenant = PLATFORM,
    ) -> NewJob:
        """A job that can be enqueued, or `InvalidJob`. A `run_at` in the past, or none, means now."""
        priority = self.policy.priority if priority is None else priority
        max_attempts = self.policy.attempts if max_attempts is None else max_attempts
        if not 1 <= priority <= 99:
            raise InvalidJob(f"priority is {priority}; allowed: 1 (first) to 99 (last)")
        if not 1 <= max_attempts <= 1000:
            raise InvalidJob(f"max_attempts is {max_attempts}; allowed: 1 to 1000")
        if run_at is not None and run_at.tzinfo is None:
            raise InvalidJob("run_at has no time zone; give an aware datetime")
        return NewJob(
            id=new_id(),
            job_type=self.name,
            payload=self.encode(payload),
            priority=priority,
            max_attempts=max_attempts,
            run_at=run_at,
            unique_key=_key("unique_key", unique_key),
            concurrency_key=_key("concurrency_key", concurrency_key),
            reseller_id=tenant.reseller_id,
            merchant_id=tenant.merchant_id,
        )

    def encode(self, payload: P) -> str:
        try:
            encoded = _encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as error:
            raise PayloadRefused(
                f"The payload of job {self.name} cannot be written as JSON: {error}"
            ) from error
        if len(encoded) > PAYLOAD_BYTES_MAX:
            raise PayloadRefused(
                f"The payload of job {self.name} has {len(encoded)} bytes, allowed: {PAYLOAD_BYTES_MAX}. "
                "Store it elsewhere and put its id into the job."
            )
        self.decode(encoded)
        return encoded.decode()

    def decode(self, payload: str | bytes) -> P:
        """The payload as its type. A process of another version may have written a different shape."""
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise PayloadRefused(f"The payload of job {self.name} does not fit its type: {error}") from error


class Registry:
    """The types of a process, and the handlers of those that it runs."""

    def __init__(self, types: Iterable[JobType[Any]] = ()):
        self._types: dict[str, JobType[Any]] = {}
        self._handlers: dict[str, Handler[Any]] = {}
        for job_type in types:
            self.add(job_type)

    def add(self, job_type: JobType[P], handler: "Handler[P] | None" = None) -> None:
        """Add a type, and its handler if there is one. A second type of the same name is refused."""
        if self._types.setdefault(job_type.name, job_type) is not job_type:
            raise InvalidJob(f"There are two job types of the name {job_type.name}")
        handler = handler or job_type.handler
        if handler is not None:
            _check_handler(job_type.name, handler)
            self._handlers[job_type.name] = handler

    def __iter__(self) -> Iterator[JobType[Any]]:
        return iter(self._types.values())

    def __getitem__(self, name: str) -> JobType[Any]:
        try:
            return self._types[name]
        except KeyError:
            known = ", ".join(sorted(self._types)) or "none"
            raise UnknownJobType(f"There is no job type {name!r}. Known: {known}") from None

    def new(self, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]) -> NewJob:
        """A job that can be enqueued, or `InvalidJob`."""
        kind: JobType[Any] = self[job_type] if isinstance(job_type, str) else job_type
        return kind.new(payload, **options)

    def handler(self, name: str) -> Handler[Any]:
        return self._handlers[name]

    @property
    def runnable(self) -> list[str]:
        return list(self._handlers)

    def policy(self, name: str) -> Policy:
        """A type of another version of the code gets the default."""
        job_type = self._types.get(name)
        return job_type.policy if job_type is not None else Policy()

    @property
    def running_max(self) -> dict[str, int]:
        return {job_type.name: job_type.policy.per_key for job_type in self}


# Every type that was declared by `@job`, in any module that was imported.
declared = Registry()


def job(
    name: str, policy: Policy | None = None, *, over_http: bool = False
) -> Callable[[Handler[P]], JobType[P]]:
    """Declare a job type and its handler, a function of payload and run. The payload's annotation is its type. With
    `over_http` a key with the scope `jobs` can enqueue it, for the tenant of that key."""

    def decorate(handler: Handler[P]) -> JobType[P]:
        _check_handler(name, handler)
        job_type = JobType(name, _payload_type(handler), policy or Policy(), handler, over_http=over_http)
        declared.add(job_type)
        return job_type

    return decorate


def _payload_type(handler: Handler[P]) -> type[P]:
    first, *rest = inspect.signature(handler).parameters
    if len(rest) != 1:
        raise InvalidJob(f"{handler} must take a payload and a run")
    payload: type[P] = get_type_hints(handler).get(first, Any)
    return payload


def _check_handler(name: str, handler: Handler[Any]) -> None:
    if (reason := refusal(handler)) is not None:
        raise InvalidJob(f"The handler of job {name} cannot be run: {reason}")


def _key(name: str, value: str | None) -> str | None:
    if value is not None and (not 1 <= len(value) <= UNIQUE_KEY_MAX or "\x00" in value):
        raise InvalidJob(f"{name} must have 1 to {UNIQUE_KEY_MAX} characters")
    return value
