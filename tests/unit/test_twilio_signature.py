"""Our signatures against the official SDK's validator: it accepts what we sign, we refuse what it refuses."""

import json
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from trunkline.telephony.carrier import WebhookRequest
from trunkline.telephony.forms import FORM
from trunkline.telephony.twilio_webhooks import HEADER, signature, verified_fields

TOKEN = "12345"
JUDGE = RequestValidator(TOKEN)
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FIELDS = [
    ("CallSid", "CA1234567890ABCDE"),
    ("Caller", "+14158675309"),
    ("Digits", "1234"),
    ("From", "+14158675309"),
    ("To", "+18005551212"),
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
fields = st.lists(st.tuples(texts.filter(bool), texts), max_size=8)
hosts = st.sampled_from(["example.com", "example.com:8443", "example.com:443", "10.0.0.7:80"])
urls = st.builds(
    lambda scheme, host, path: f"{scheme}://{host}/{path}?attempt=1&sig=a-b_c",
    st.sampled_from(["http", "https"]),
    hosts,
    st.sampled_from(["", "webhooks/twilio/status", "a%20b"]),
)


def post(url: str, form: list[tuple[str, str]], proof: str) -> WebhookRequest:
    headers = {"content-type": f"{FORM}; charset=utf-8", HEADER: proof}
    return WebhookRequest("POST", url, headers, urlencode(form).encode())


def judged(url: str, form: list[tuple[str, str]], proof: str) -> bool:
    return bool(JUDGE.validate(url, MultiDict(form), proof))


def test_the_documented_example_has_the_documented_signature() -> None:
    assert signature(TOKEN, URL, FIELDS) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="
    repeated = [("Sid", "CA123"), ("SidAccount", "AC123"), *[("Digits", d) for d in ("5678", "1234", "1234")]]
    assert signature(TOKEN, URL, repeated) == "IK+Dwps556ElfBT0I3Rgjkr1wJU="


@given(urls, fields)
def test_the_official_validator_accepts_our_twilio_signatures(url: str, form: list[tuple[str, str]]) -> None:
    assert judged(url, form, signature(TOKEN, url, form))


@given(urls, fields)
def test_signatures_of_the_official_twilio_validator_verify(url: str, form: list[tuple[str, str]]) -> None:
    proof = JUDGE.compute_signature(url, MultiDict(form))
    assert verified_fields(post(url, form, proof), [TOKEN]) is not None


@given(st.text(st.sampled_from("ab&=+%2F9é"), max_size=30))
def test_a_form_is_read_as_the_standard_library_reads_it(form: str) -> None:
    body = form.encode()
    try:
        expected = parse_qsl(form, keep_blank_values=True, errors="strict")
    except ValueError:
        expected = None
    proof = signature(TOKEN, URL, expected or ())
    request = WebhookRequest("POST", URL, {"content-type": FORM, HEADER: proof}, body)
    assert verified_fields(request, [TOKEN]) == (expected if body else ())


@given(urls, fields, st.data())
def test_changed_requests_verify_exactly_if_twilios_official_validator_accepts_them(
    url: str, form: list[tuple[str, str]], data: st.DataObject
) -> None:
    proof = signature(TOKEN, url, form)
    other_url = data.draw(urls)
    other_form = data.draw(st.one_of(st.just(form), fields))
    ours = verified_fields(post(other_url, other_form, proof), [TOKEN]) is not None
    assert ours == judged(other_url, other_form, proof)


@pytest.mark.parametrize(
    ("signed", "seen"),
    [
        ("https://example.com/a", "https://example.com:443/a"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("https://example.com/a", "https://example.com:8443/a"),
    ],
)
def test_the_port_may_be_missing_from_what_was_signed_or_seen(signed: str, seen: str) -> None:
    proof = signature(TOKEN, signed, FIELDS)
    assert verified_fields(post(seen, FIELDS, proof), [TOKEN]) == FIELDS
    assert judged(seen, FIELDS, proof)


def test_repeated_values_are_signed_once_and_in_order() -> None:
    form = [("B", "2"), ("A", "z"), ("A", "a"), ("A", "z")]
    proof = signature(TOKEN, URL, form)
    assert proof == signature(TOKEN, URL, [("A", "a"), ("A", "z"), ("B", "2")])
    assert judged(URL, form, proof)


def json_request(body: bytes, *, hashed: bytes | None = None) -> WebhookRequest:
    url = f"https://example.com/a?bodySHA256={sha256(hashed or body).hexdigest()}"
    headers = {"content-type": "application/json", HEADER: signature(TOKEN, url)}
    return WebhookRequest("POST", url, headers, body)


def test_a_json_body_is_covered_by_its_hash_in_the_signed_url() -> None:
    body = json.dumps({"CallSid": "CA1"}).encode()
    request = json_request(body)
    assert verified_fields(request, [TOKEN]) == ()
    assert JUDGE.validate(request.url, body.decode(), request.headers[HEADER])


def test_a_json_body_that_does_not_match_its_hash_is_refused() -> None:
    request = json_request(b'{"CallSid":"CA2"}', hashed=b'{"CallSid":"CA1"}')
    assert verified_fields(request, [TOKEN]) is None
    assert not JUDGE.validate(request.url, request.body.decode(), request.headers[HEADER])


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", ""])
def test_a_body_that_no_signature_covers_is_refused(content_type: str) -> None:
    headers = {"content-type": content_type, HEADER: signature(TOKEN, URL)}
    assert verified_fields(WebhookRequest("POST", URL, headers, b'{"CallSid":"CA1"}'), [TOKEN]) is None


def test_a_get_is_signed_by_its_url_and_read_from_it() -> None:
    request = WebhookRequest("GET", URL, {HEADER: signature(TOKEN, URL)}, b"")
    assert verified_fields(request, [TOKEN]) == [("foo", "1"), ("bar", "2")]
    assert JUDGE.validate(URL, {}, signature(TOKEN, URL))


def test_a_get_with_a_body_is_refused() -> None:
    request = WebhookRequest("GET", URL, {HEADER: signature(TOKEN, URL)}, b"CallSid=CA1")
    assert verified_fields(request, [TOKEN]) is None


@pytest.mark.parametrize("headers", [{}, {HEADER: ""}, {HEADER: "nonsense"}, {HEADER: "é"}])
def test_a_missing_or_broken_signature_is_refused(headers: dict[str, str]) -> None:
    body = urlencode(FIELDS).encode()
    assert (
        verified_fields(WebhookRequest("POST", URL, {"content-type": FORM} | headers, body), [TOKEN]) is None
    )


def test_while_tokens_are_rotated_both_verify_and_no_third() -> None:
    request = post(URL, FIELDS, signature("old", URL, FIELDS))
    assert verified_fields(request, ["new", "old"]) == FIELDS
    assert verified_fields(request, ["new", "other"]) is None


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=%ff", "&".join(f"f{i}=1" for i in range(300)).encode()])
def test_a_form_that_cannot_be_read_is_refused(body: bytes) -> None:
    headers: dict[str, Any] = {"content-type": FORM, HEADER: signature(TOKEN, URL)}
    assert verified_fields(WebhookRequest("POST", URL, headers, body), [TOKEN]) is None
