"""X-Twilio-Signature: base64(HMAC-SHA1(auth token, URL + every POST field as name then value, sorted)).

A JSON body is covered by its SHA-256 in the signed query instead (`bodySHA256`).
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from urllib.parse import urlsplit, urlunsplit

from trunkline.telephony.carrier import WebhookRequest
from trunkline.telephony.forms import FORM, Fields, media_type, read_form, read_query

__all__ = ["FORM", "HEADER", "Fields", "signature", "verified_fields"]

HEADER = "x-twilio-signature"


def signature(auth_token: str, url: str, fields: Iterable[tuple[str, str]] = ()) -> str:
    return _proof(auth_token, url + _joined(fields))


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Twilio signed with one of these tokens, else None."""
    given = request.headers.get(HEADER, "").encode()
    fields = _post_fields(request)
    if not given or fields is None:
        return None
    signed = _joined(fields)
    for url in _with_and_without_port(request.url):
        for token in auth_tokens:
            if hmac.compare_digest(_proof(token, url + signed).encode(), given):
                return fields if request.method == "POST" else read_query(request.url)
    return None


def _joined(fields: Iterable[tuple[str, str]]) -> str:
    """A set of pairs, sorted: names in order, each name's values without repeats and in order."""
    return "".join([name + value for name, value in sorted(set(fields))])


def _proof(auth_token: str, signed: str) -> str:
    return b64encode(hmac.digest(auth_token.encode(), signed.encode(), "sha1")).decode()


def _post_fields(request: WebhookRequest) -> Fields | None:
    """The fields of the body that the signature covers. None: it does not cover the body, which cannot be trusted."""
    if request.method != "POST" or not request.body:
        return () if not request.body else None
    if media_type(request.headers.get("content-type", "")) == FORM:
        return read_form(request.body)
    digest = dict(read_query(request.url)).get("bodySHA256", "")
    covered = hmac.compare_digest(sha256(request.body).hexdigest().encode(), digest.lower().encode())
    return () if covered else None


def _with_and_without_port(url: str) -> Iterator[str]:
    """Twilio signs the URL sometimes with and sometimes without the port: both are tried, the usual one first."""
    yield url
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return
    default = 443 if parts.scheme in ("https", "wss") else 80
    netloc = parts.netloc.removesuffix(f":{port}") if port else f"{parts.netloc}:{default}"
    yield urlunsplit(parts._replace(netloc=netloc))
