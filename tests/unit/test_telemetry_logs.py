"""Log lines: what is on them, how they look, and that no phone number is in the bytes that come out."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
import structlog
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trunkline.settings import load_settings
from trunkline.telemetry import bind, configure_logging, get_logger
from trunkline.telemetry.redaction import pseudonyms

# A loaded machine is slow; that is not what is tested.
unhurried = hypothesis_settings(deadline=None)

NUMBER = "+14155550123"
DIGITS = "4155550123"
LEAD = UUID("0193a2b4-1234-7000-8000-012345678901")

log = get_logger("trunkline.test")


class Output(io.StringIO):
    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (only,) = self.lines
        return only


class Terminal(Output):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _put_logging_back() -> Iterator[None]:
    root = logging.getLogger()
    before = structlog.get_config(), root.handlers[:], root.level, threading.excepthook, sys.excepthook
    yield
    structlog.configure(**before[0])
    root.handlers[:], root.level, threading.excepthook, sys.excepthook = before[1:]
    logging.captureWarnings(False)


@pytest.fixture
def output() -> Output:
    return configured()


def configured(stream: Output | None = None, **environ: str) -> Output:
    stream = stream or Output()
    configure_logging(load_settings({"LOG_LEVEL": "debug", **environ}), stream)
    return stream


def test_a_line_has_time_level_event_logger_and_its_own_values(output: Output) -> None:
    log.info("call.placed", carrier="twilio", lateness_ms=4.5, channel=3, first=True)
    line = output.line
    assert list(line)[:4] == ["timestamp", "level", "event", "logger"]
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "level": "info",
        "event": "call.placed",
        "logger": "trunkline.test",
        "carrier": "twilio",
        "lateness_ms": 4.5,
        "channel": 3,
        "first": True,
    }


def test_bound_ids_are_on_every_line_inside_and_on_none_outside(output: Output) -> None:
    with bind(request_id="r-1"), bind(lead_id=LEAD, attempt_id=None):
        log.info("inside")
        logging.getLogger("asyncpg").warning("inside too")
    log.info("outside")
    inside, foreign, outside = output.lines
    for line in (inside, foreign):
        assert (line["request_id"], line["lead_id"]) == ("r-1", str(LEAD))
        assert "attempt_id" not in line
    assert "lead_id" not in outside


async def test_tasks_keep_their_own_ids(output: Output) -> None:
    async def work(lead_id: str) -> None:
        with bind(lead_id=lead_id):
            await asyncio.sleep(0)
            log.info("worked", wanted=lead_id)

    await asyncio.gather(*(work(f"lead-{n}") for n in range(5)))
    worked = [line for line in output.lines if line["event"] == "worked"]
    assert len(worked) == 5
    assert all(line["lead_id"] == line["wanted"] for line in worked)


def test_a_terminal_gets_text_and_a_pipe_gets_json() -> None:
    terminal = configured(Terminal())
    log.info("call.placed", carrier="twilio")
    assert "\x1b[" in terminal.getvalue()
    assert "carrier" in terminal.getvalue()
    pipe = configured(Output())
    log.info("call.placed")
    assert pipe.line["event"] == "call.placed"


def test_the_format_can_be_forced() -> None:
    forced = configured(Terminal(), LOG_FORMAT="json")
    log.info("call.placed")
    assert forced.line["event"] == "call.placed"
    text = configured(Output(), LOG_FORMAT="console")
    log.info("call.placed")
    assert "\x1b[" not in text.getvalue()
    assert not text.getvalue().startswith("{")


def test_lines_below_the_level_are_dropped() -> None:
    output = configured(LOG_LEVEL="warning")
    log.info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    log.warning("heard")
    assert output.line["event"] == "heard"


def test_loggers_made_before_are_configured_too() -> None:
    first = configured()
    log.info("one")
    second = configured()
    log.info("two")
    assert (first.line["event"], second.line["event"]) == ("one", "two")


def test_uvicorn_has_no_handlers_of_its_own() -> None:
    own = logging.StreamHandler(io.StringIO())
    logging.getLogger("uvicorn.access").addHandler(own)
    output = configured()
    logging.getLogger("uvicorn.access").info("GET /")
    assert output.line["logger"] == "uvicorn.access"
    assert own not in logging.getLogger("uvicorn.access").handlers


class Caller:
    def __repr__(self) -> str:
        return f"Caller({NUMBER})"


def raise_planted() -> None:
    try:
        raise LookupError(f"no lead for {NUMBER}")
    except LookupError as error:
        raise RuntimeError("dial failed for %2B14155550123") from error


def log_exception() -> None:
    try:
        raise_planted()
    except RuntimeError:
        log.exception("dial.failed")


def log_foreign_exception() -> None:
    try:
        raise_planted()
    except RuntimeError:
        logging.getLogger("asyncpg").exception("could not save %s", NUMBER)


def log_group() -> None:
    log.error(
        "several", exc_info=ExceptionGroup(f"for {NUMBER}", [ValueError(NUMBER), OSError(f"sip:{NUMBER}")])
    )


def log_in_context() -> None:
    with bind(caller=NUMBER):
        log.info("bound")


def access(path: str) -> None:
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "GET", path, "1.1", 200
    )


PLANTED: dict[str, Callable[[], object]] = {
    "event": lambda: log.info(f"dialling {NUMBER}"),
    "positional": lambda: log.info("dialling %s", NUMBER),
    "value": lambda: log.info("call.placed", to=NUMBER),
    "bare digits under a key": lambda: log.info("call.placed", to=DIGITS, phone=DIGITS),
    "integer under a key": lambda: log.info("call.placed", phone=int(DIGITS)),
    "national": lambda: log.info("call.placed", note="reach me at (415) 555-0123"),
    "nested": lambda: log.info("lead.received", payload={"customers": [{"mobile": DIGITS}, NUMBER]}),
    "key": lambda: log.info("channels", held={NUMBER: 3}),
    "object": lambda: log.info("caller", who=Caller(), whom=[Caller()]),
    "bytes": lambda: log.info("webhook.received", body=b"To=%2B14155550123&From=4155550123"),
    "json text": lambda: log.info("webhook.received", body=json.dumps({"to": DIGITS, "n": [NUMBER]})),
    "json in json": lambda: log.info("webhook.received", body=json.dumps(json.dumps({"to": DIGITS}))),
    "exception": log_exception,
    "exception of a library": log_foreign_exception,
    "exception group": log_group,
    "exception value": lambda: log.info("failed", error=ValueError(NUMBER)),
    "context": log_in_context,
    "stack": lambda: log.info("here", stack_info=True, to=NUMBER),
    "access log": lambda: access("/leads?to=%2B14155550123&from=4155550123"),
    "access log, spaces": lambda: access("/leads?to=%2B1+%28415%29+555-0123&q=415%20555%200123"),
    "wrong arguments": lambda: logging.getLogger("x").info("%d %d", NUMBER),
    "warning": lambda: warnings.warn(f"slow {NUMBER}", UserWarning, stacklevel=1),
}


@pytest.mark.parametrize("stream", [Output, Terminal])
@pytest.mark.parametrize("place", PLANTED)
def test_no_planted_number_is_in_the_bytes(
    place: str, stream: type[Output], recwarn: pytest.WarningsRecorder
) -> None:
    output = stream()
    configured(output)
    PLANTED[place]()
    emitted = output.getvalue()
    assert emitted
    assert DIGITS not in emitted
    assert "555-0123" not in emitted
    assert "555%200123" not in emitted


@unhurried
@given(st.from_regex(r"\+[1-9][0-9]{6,14}", fullmatch=True), st.text(max_size=20), st.booleans())
def test_no_number_survives_in_a_rendered_line(number: str, key: str, terminal: bool) -> None:
    output = configured(Terminal() if terminal else Output())
    try:
        raise ValueError(f"{key}{number}")
    except ValueError:
        log.exception(f"{key} {number}", to=number, value={key: [number, {number: key}]})
    logging.getLogger("lib").warning("%s|%s", key, number)
    assert number[1:] not in output.getvalue()


@pytest.mark.parametrize(
    "path", ["/cb?attempt=1&sig=planted", "/cb?token=planted", "/x?next=redis%3A//:planted@h&api_key=planted"]
)
def test_no_signature_or_token_is_in_an_access_line(path: str, output: Output) -> None:
    access(path.replace("%3A", ":"))
    assert "planted" not in output.getvalue()
    assert "***" in output.line["event"]


def test_ids_and_times_are_readable(output: Output) -> None:
    values = {
        "lead_id": str(LEAD),
        "due_ms": 1763194020123,
        "size": 104857600,
        "sid": "CA" + "1" * 32,
        "port": 54321,
    }
    log.info("call.placed", **values)
    assert output.line.items() >= values.items()


def test_with_a_key_pseudonyms_are_the_same_in_every_process() -> None:
    program = (
        "from trunkline.settings import load_settings\n"
        "from trunkline.telemetry import configure_logging, get_logger\n"
        "configure_logging(load_settings({'TRUNKLINE_SECRET_KEY': 'k' * 32}))\n"
        f"get_logger('x').info('{NUMBER}')\n"
    )
    events = [
        json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stderr)[
            "event"
        ]
        for _ in range(2)
    ]
    assert events[0] == events[1]
    assert events[0].startswith("phone:")


def test_an_uncaught_exception_is_logged_and_masked() -> None:
    program = (
        "import threading\n"
        "from trunkline.settings import load_settings\n"
        "from trunkline.telemetry import configure_logging\n"
        "configure_logging(load_settings({}))\n"
        f"def fail(): raise ValueError('{NUMBER}')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "fail()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == [
        "thread.crashed",
        "process.crashed",
    ]
    assert DIGITS not in ended.stderr


def test_a_log_line_that_cannot_be_written_raises_nothing() -> None:
    output = configured()
    output.close()
    log.info("into the void")


@pytest.mark.parametrize("value", ["\ud800", 2**80, float("nan"), object(), {1: {2: {3}}}, b"\xff"])
def test_odd_values_still_make_a_line(value: object, output: Output) -> None:
    log.info("odd", value=value)
    assert output.line["event"] == "odd"


def test_unknown_levels_of_libraries_are_kept(output: Output) -> None:
    logging.getLogger("x").log(25, "between")
    logging.getLogger("x").log(60, "beyond")
    assert [line["level"] for line in output.lines] == ["info", "critical"]


def test_pseudonyms_of_a_line_can_be_found_again(output: Output) -> None:
    log.info("call.placed", to=NUMBER)
    assert output.line["to"] == pseudonyms.of(NUMBER)
