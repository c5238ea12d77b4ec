"""Our signatures against the official SDK's validators: they accept what we sign, we refuse what they refuse."""

from base64 import b64encode
from hashlib import sha256
from hmac import digest
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plivo.utils import validate_signature  # type: ignore[import-untyped]
from plivo.utils.signature_v3 import (  # type: ignore[import-untyped]
    construct_get_url,
    construct_post_url,
    get_signature_v3,
    validate_v3_signature,
)

from trunkline.telephony.carrier import WebhookRequest
from trunkline.telephony.forms import FORM
from trunkline.telephony.plivo_webhooks import signature_v2, signature_v3, verified_fields

TOKEN = "MTIzNDU2Nzg5MA"
NONCE = "05429567804466091622"
URL = "https://calls.example.com/webhooks/plivo/status?attempt=1&sig=a-b_c"
FIELDS = [
    ("CallUUID", "97ceeb52-58b6-11e1-86da-77300b68f8bb"),
    ("CallStatus", "ringing"),
    ("To", "15005551001"),
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
fields = st.lists(st.tuples(texts.filter(bool), texts), max_size=6, unique_by=lambda pair: pair[0])
urls = st.sampled_from(
    [URL, "https://example.com/a", "http://10.0.0.7:8080/a/b?z=1&a=2", "https://example.com/a?b=&a=x y"]
)


def post(url: str, form: list[tuple[str, str]], **headers: str) -> WebhookRequest:
    named = {f"x-plivo-signature-{name.replace('_', '-')}": value for name, value in headers.items()}
    return WebhookRequest("POST", url, {"content-type": FORM, **named}, urlencode(form).encode())


def judged(url: str, form: list[tuple[str, str]], proof: str) -> bool:
    return bool(validate_v3_signature("POST", url, NONCE, TOKEN, proof, dict(form)))


@given(urls, fields)
def test_the_official_validator_accepts_our_plivo_signatures(url: str, form: list[tuple[str, str]]) -> None:
    assert judged(url, form, signature_v3(TOKEN, "POST", url, form, NONCE))


@given(urls, fields)
def test_signatures_of_the_official_plivo_sdk_verify(url: str, form: list[tuple[str, str]]) -> None:
    proof = get_signature_v3(TOKEN, construct_post_url(url, dict(form)).decode(), NONCE).decode()
    assert verified_fields(post(url, form, v3=proof, v3_nonce=NONCE), [TOKEN]) is not None


@given(urls, fields, st.data())
def test_changed_requests_verify_exactly_if_plivos_official_validator_accepts_them(
    url: str, form: list[tuple[str, str]], data: st.DataObject
) -> None:
    proof = signature_v3(TOKEN, "POST", url, form, NONCE)
    other_url = data.draw(urls)
    other_form = data.draw(st.one_of(st.just(form), fields))
    ours = verified_fields(post(other_url, other_form, v3=proof, v3_nonce=NONCE), [TOKEN]) is not None
    assert ours == judged(other_url, other_form, proof)


@given(urls)
def test_a_get_is_signed_by_its_sorted_query(url: str) -> None:
    proof = get_signature_v3(TOKEN, construct_get_url(url, {}).decode(), NONCE).decode()
    assert proof == signature_v3(TOKEN, "GET", url, (), NONCE)
    headers = {"x-plivo-signature-v3": proof, "x-plivo-signature-v3-nonce": NONCE}
    assert verified_fields(WebhookRequest("GET", url, headers, b""), [TOKEN]) is not None
    assert validate_v3_signature("GET", url, NONCE, TOKEN, proof)


@given(urls)
def test_signature_v2_agrees_with_the_official_validator(url: str) -> None:
    proof = signature_v2(TOKEN, url, NONCE)
    assert validate_signature(url, NONCE, proof, TOKEN)
    assert verified_fields(post(url, FIELDS, v2=proof, v2_nonce=NONCE), [TOKEN]) == FIELDS
    assert verified_fields(post(url, FIELDS, v2=proof, v2_nonce="1"), [TOKEN]) is None


def test_a_valid_signature_v2_does_not_replace_a_wrong_v3() -> None:
    good = signature_v2(TOKEN, URL, NONCE)
    both = post(URL, FIELDS, v2=good, v2_nonce=NONCE, v3="wrong", v3_nonce=NONCE)
    assert verified_fields(both, [TOKEN]) is None


def test_a_header_may_hold_several_signatures() -> None:
    good = signature_v3(TOKEN, "POST", URL, FIELDS, NONCE)
    assert verified_fields(post(URL, FIELDS, v3=f"old, {good}", v3_nonce=NONCE), [TOKEN]) == FIELDS


def test_a_subaccounts_webhook_verifies_by_the_main_accounts_token() -> None:
    good = signature_v3("main", "POST", URL, FIELDS, NONCE)
    request = post(URL, FIELDS, v3="by the subaccount", ma_v3=good, v3_nonce=NONCE)
    assert verified_fields(request, [TOKEN, "main"]) == FIELDS
    assert verified_fields(request, [TOKEN]) is None


@pytest.mark.parametrize(
    "headers", [{}, {"v3": ""}, {"v3": "nonsense"}, {"v3": "é"}, {"v3_nonce": NONCE}, {"v2": ""}]
)
def test_a_missing_or_broken_signature_is_refused(headers: dict[str, str]) -> None:
    assert verified_fields(post(URL, FIELDS, **headers), [TOKEN]) is None


def test_a_signature_without_a_nonce_is_refused() -> None:
    good = signature_v3(TOKEN, "POST", URL, FIELDS, NONCE)
    assert verified_fields(post(URL, FIELDS, v3=good), [TOKEN]) is None


def test_a_body_of_another_type_is_refused() -> None:
    proof = b64encode(digest(TOKEN.encode(), b"x", sha256)).decode()
    headers = {"content-type": "text/plain", "x-plivo-signature-v3": proof}
    assert verified_fields(WebhookRequest("POST", URL, headers, b"CallUUID=1"), [TOKEN]) is None
