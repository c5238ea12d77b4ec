"""Parses the analysis of Vapi's assistant into an agent's report.

The assistant is the agent here, and its analysis is the report: the fields of an agent's report, if its structured data
or a structured output has them, and all of it as data. The transcript stays at Vapi; the report has its URL.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from trunkline.moments import read_moment
from trunkline.telephony.carrier import AgentReport

DATA_BYTES_MAX = 64 * 1024
WORD_MAX, REFERENCE_MAX = 100, 2000


def read_report(message: Mapping[str, Any], call_id: str, base_url: str) -> AgentReport | None:
    """None if there is nothing to report: the call was not answered, or there is no analysis, recording or
    transcript."""
    artifact, analysis = _object(message, "artifact"), _object(message, "analysis")
    fields = _fields(analysis, artifact)
    report = AgentReport(
        disposition=_text(fields.get("disposition"), WORD_MAX),
        opt_out=_is_true(fields.get("opt_out", fields.get("optOut"))),
        callback_at=read_moment(fields.get("callback_at", fields.get("callbackAt"))),
        transcript_ref=f"{base_url}/call/{call_id}" if artifact.get("transcript") else None,
        recording_ref=_text(artifact.get("recordingUrl"), REFERENCE_MAX),
        data=_bounded(analysis, fields),
    )
    return report if report != AgentReport() else None


def _fields(analysis: Mapping[str, Any], artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Structured outputs have a name and a result each; a result that is an object has fields of its own."""
    fields = dict(_object(analysis, "structuredData"))
    for output in _object(artifact, "structuredOutputs").values():
        if isinstance(output, dict):
            result = output.get("result")
            fields |= result if isinstance(result, dict) else {str(output.get("name")): result}
    return fields


def _bounded(analysis: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """All of it, or as much as fits. Values that Postgres cannot store are omitted."""
    words = {name: analysis.get(name) for name in ("summary", "successEvaluation")}
    found = {name: value for name, value in (words | fields).items() if value is not None}
    for data in (found, fields):
        encoded = msgspec.json.encode(data)
        if len(encoded) <= DATA_BYTES_MAX and b"\\u0000" not in encoded:
            return data
    return {}


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _text(value: object, length_max: int) -> str | None:
    is_text = isinstance(value, str) and 0 < len(value) <= length_max and value.isprintable()
    return str(value) if is_text else None


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}
