"""Calls as Vapi shows them: why they ended, and a control URL that is used only where it leads to the carrier."""

import pytest

from trunkline.telephony.vapi import control_url, view_of

BASE = "https://api.vapi.ai"
OUT_OF_CREDIT = "call.start.error-subscription-insufficient-credits"


def test_a_control_url_on_vapis_host_is_used() -> None:
    url = "https://phone-call-websocket.vapi.ai/call-1/control"
    assert control_url({"monitor": {"controlUrl": url}}, BASE) == url


@pytest.mark.parametrize("url", [None, "", "https://vapi.ai.example.com/control", "https://[", "not a URL"])
def test_a_control_url_on_another_host_is_ignored(url: str | None) -> None:
    assert control_url({"monitor": {"controlUrl": url}}, BASE) is None


@pytest.mark.parametrize(
    ("reason", "status", "fault"),
    [
        (OUT_OF_CREDIT, "ended", OUT_OF_CREDIT),
        (OUT_OF_CREDIT, "ringing", ""),
        ("customer-busy", "ended", ""),
        (None, "ended", ""),
    ],
)
def test_vapis_record_keeps_the_end_reason_of_our_fault(reason: str | None, status: str, fault: str) -> None:
    view = view_of({"id": "c", "status": status, "endedReason": reason}, {})
    assert view is not None
    assert view.fault == fault
