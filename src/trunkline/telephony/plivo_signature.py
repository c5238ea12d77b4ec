"""Plivo's signatures. V3 covers URL and fields, V2 only the URL without its query.

V3: base64(HMAC-SHA256(token, base + "." + nonce)). The base of a GET is the URL with its query sorted. That of a POST
is the same URL, a `.` behind its query (a bare `?` when it has none), and every field as name then value, sorted.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from trunkline.telephony.carrier import WebhookRequest
from trunkline.telephony.forms import Fields, read_fields, read_query

# Plivo sends each twice: signed with the subaccount's token, and (Ma) with the main account's.
V3_HEADERS = ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")
V3_NONCE = "x-plivo-signature-v3-nonce"
V2_HEADERS = ("x-plivo-signature-v2", "x-plivo-signature-ma-v2")
V2_NONCE = "x-plivo-signature-v2-nonce"


def signature_v3(auth_token: str, method: str, url: str, fields: Fields, nonce: str) -> str:
    return _proof(auth_token, f"{_base(method, url, fields)}.{nonce}")


def signature_v2(auth_token: str, url: str, nonce: str) -> str:
    return _proof(auth_token, _bare(url) + nonce)


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Plivo signed with one of these tokens, else None.

    V2 counts only if there is no V3 at all: it does not cover the body.
    """
    fields = _fields(request)
    if fields is None:
        return None
    headers = request.headers
    given = _given(headers.get(name, "") for name in V3_HEADERS)
    if given:
        post_fields = fields if request.method == "POST" else ()
        base = f"{_base(request.method, request.url, post_fields)}.{headers.get(V3_NONCE, '')}"
    else:
        given = _given(headers.get(name, "") for name in V2_HEADERS)
        base = _bare(request.url) + headers.get(V2_NONCE, "")
    expected = [_proof(token, base).encode() for token in auth_tokens]
    # Every pair is compared, so the time does not reveal which one fits.
    matches = [hmac.compare_digest(proof, signature) for proof in expected for signature in given]
    return fields if any(matches) else None


def _fields(request: WebhookRequest) -> Fields | None:
    if request.method != "POST":
        return read_query(request.url) if not request.body else None
    if not request.body:
        return ()
    return read_fields(request.headers.get("content-type", ""), request.body)


def _given(values: Iterable[str]) -> list[bytes]:
    """Each header may be a list, one signature per present token of the account."""
    return [text.strip().encode() for value in values for text in value.split(",") if text.strip()]


def _base(method: str, url: str, fields: Fields) -> str:
    query = "&".join([f"{name}={value}" for name, value in sorted(read_query(url))])
    if method != "POST" or not fields:
        return _bare(url) + (f"?{query}" if query else "")
    signed = "".join([name + value for name, value in sorted(fields)])
    return f"{_bare(url)}?{query}{'.' if query else ''}{signed}"


def _bare(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _proof(auth_token: str, signed: str) -> str:
    return b64encode(hmac.digest(auth_token.encode(), signed.encode("utf-8", "replace"), "sha256")).decode()
