"""X-Twilio-Signature: base64(HMAC-SHA1(auth token, URL + every POST field as name then value, sorted)).

A JSON body is covered by its SHA-256 in the signed query instead (`bodySHA256`).
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from trunkline.telephony.carrier import WebhookRequest

HEADER = "x-twilio-signature"
FORM = "application/x-www-form-urlencoded"

Fields = Sequence[tuple[str, str]]


def signature(auth_token: str, url: str, fields: Iterable[tuple[str, str]] = ()) -> str:
    # A set of pairs, sorted: names in order, each name's values without repeats and in order.
    signed = url + "".join(name + value for name, value in sorted(set(fields)))
    return b64encode(hmac.digest(auth_token.encode(), signed.encode(), "sha1")).decode()


def verified_fields(request: WebhookRequest, auth_tokens: Sequence[str]) -> Fields | None:
    """The fields of a request that Twilio signed with one of these tokens, else None."""
    given = request.headers.get(HEADER, "").encode()
    fields = _post_fields(request)
    if not given or fields is None:
        return None
    urls = _with_and_without_port(request.url)
    expected = [signature(token, url, fields).encode() for token in auth_tokens for url in urls]
    matches = [hmac.compare_digest(one, given) for one in expected]  # all of them, found or not
    if not any(matches):
        return None
    return fields if request.method == "POST" else _query(request.url)


def _post_fields(request: WebhookRequest) -> Fields | None:
    """What of the body the signature covers. None: the body is not covered, nothing of it can be trusted."""
    if request.method != "POST" or not request.body:
        return () if not request.body else None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
        return _form(request.body)
    digest = dict(_query(request.url)).get("bodySHA256", "")
    covered = hmac.compare_digest(sha256(request.body).hexdigest().encode(), digest.lower().encode())
    return () if covered else None


def _form(body: bytes) -> Fields | None:
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=200)
    except ValueError:
        return None


def _query(url: str) -> Fields:
    return parse_qsl(urlsplit(url).query, keep_blank_values=True)


def _with_and_without_port(url: str) -> tuple[str, str]:
    """Twilio is not consistent about the port, so both forms are tried."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return url, url
    bare = parts.netloc.removesuffix(f":{port}") if port else parts.netloc
    default = 443 if parts.scheme in ("https", "wss") else 80
    return _at(parts, bare), _at(parts, f"{bare}:{port or default}")


def _at(parts: SplitResult, netloc: str) -> str:
    return urlunsplit(parts._replace(netloc=netloc))
