"""Verifies that a request at an agent comes from the carrier. Twilio and Plivo sign their requests; Exotel signs
nothing, so its URL carries a user name and a password. Pure, and without the platform.

Twilio: base64(HMAC-SHA1(token, URL + every field as name then value, sorted, without repeats)).
Plivo, V3: base64(HMAC-SHA256(token, URL with its query sorted + fields + "." + nonce)). Its V2 does not cover the
fields, among them the call's id, so it is not accepted.
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit, urlunsplit

Fields = Sequence[tuple[str, str]]

TWILIO_SIGNATURE = "X-Twilio-Signature"
# Signed with the subaccount's token, and (Ma) with the main account's.
PLIVO_SIGNATURES = ("X-Plivo-Signature-V3", "X-Plivo-Signature-Ma-V3")
PLIVO_NONCE = "X-Plivo-Signature-V3-Nonce"


def is_signed_by_twilio(url: str, fields: Fields, headers: Mapping[str, str], tokens: Sequence[str]) -> bool:
    signed = "".join(name + value for name, value in sorted(set(fields)))
    expected = [
        _proof(token, each + signed, "sha1") for each in _with_and_without_port(url) for token in tokens
    ]
    return _has_one_of([headers.get(TWILIO_SIGNATURE, "")], expected)


def is_signed_by_plivo(url: str, fields: Fields, headers: Mapping[str, str], tokens: Sequence[str]) -> bool:
    parts = urlsplit(url)
    query = "&".join(f"{name}={value}" for name, value in sorted(_pairs(parts.query)))
    base = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if fields:
        base += f"?{query}{'.' if query else ''}" + "".join(name + value for name, value in sorted(fields))
    elif query:
        base += f"?{query}"
    expected = [_proof(token, f"{base}.{headers.get(PLIVO_NONCE, '')}", "sha256") for token in tokens]
    # Each header may be a list, one signature per present token of the account.
    given = [text.strip() for name in PLIVO_SIGNATURES for text in headers.get(name, "").split(",")]
    return _has_one_of(given, expected)


def has_password(headers: Mapping[str, str], user: str, password: str) -> bool:
    expected = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
    return hmac.compare_digest(headers.get("Authorization", "").encode(), expected.encode())


def read_form(body: bytes) -> Fields:
    return _pairs(body.decode("utf-8", "replace"))


def _pairs(text: str) -> Fields:
    return parse_qsl(text, keep_blank_values=True)


def _has_one_of(given: Sequence[str], expected: Sequence[str]) -> bool:
    """Every pair is compared, so the time does not reveal which one fits."""
    fits = [
        hmac.compare_digest(text.encode(), proof.encode()) for text in given if text for proof in expected
    ]
    return any(fits)


def _proof(token: str, signed: str, digest: str) -> str:
    return b64encode(hmac.digest(token.encode(), signed.encode("utf-8", "replace"), digest)).decode()


def _with_and_without_port(url: str) -> tuple[str, str]:
    """Twilio signs the URL sometimes with and sometimes without the port."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    default = ":443" if parts.scheme == "https" else ":80"
    netloc = parts.netloc.removesuffix(port) if port else parts.netloc + default
    return url, urlunsplit(parts._replace(netloc=netloc))
