"""The control URL of a live call is the carrier's word: it is used only where it leads to the carrier."""

import pytest

from trunkline.telephony.vapi_records import control_url

BASE = "https://api.vapi.ai"


def test_a_control_url_on_a_host_of_the_carriers_is_used() -> None:
    url = "https://phone-call-websocket.vapi.ai/call-1/control"
    assert control_url({"monitor": {"controlUrl": url}}, BASE) == url


@pytest.mark.parametrize("url", [None, "", "https://vapi.ai.example.com/control", "https://[", "not a URL"])
def test_any_other_is_none(url: str | None) -> None:
    assert control_url({"monitor": {"controlUrl": url}}, BASE) is None
