"""The webhook endpoint: check, append, answer. It never waits for a worker, so GitHub's ten seconds are plenty."""

import json
from typing import Any

from aiohttp import web

from examples.issue_triage import github
from examples.issue_triage.github import Ignored
from examples.issue_triage.triage import ISSUE
from trunkline.errors import StoreUnavailable
from trunkline.mailbox import Mailboxes

PATH = "/webhooks/github"
# GitHub sends no more than this.
BODY_BYTES_MAX = 25 * 1024 * 1024


def application(mailboxes: Mailboxes, secret: str) -> web.Application:
    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        if not github.is_genuine(secret, request.headers.get(github.SIGNATURE), body):
            return web.Response(status=401, text="The signature does not fit.")
        payload = _payload(body)
        if payload is None:
            return web.Response(status=400, text="Not JSON. Choose the content type application/json.")
        event = request.headers.get(github.EVENT, "")
        subject = github.about(event, payload)
        if isinstance(subject, Ignored):
            return web.Response(text=f"Ignored: {subject.why}.")
        return await _append(mailboxes, subject.key, event, payload, request.headers.get(github.DELIVERY))

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_post(PATH, receive)
    return app


async def _append(
    mailboxes: Mailboxes, key: str, event: str, payload: dict[str, Any], delivery: str | None
) -> web.Response:
    """As it came: what it means is decided when it is looked at, together with everything else that happened."""
    what = f"{event}.{payload.get('action')}"[:200]
    try:
        receipt = await mailboxes.submit(
            ISSUE, key, what, {"event": event, "payload": payload}, dedupe_key=delivery
        )
    except StoreUnavailable:
        return web.Response(status=503, text="Try again.")
    return web.json_response({"issue": key, "seq": receipt.seq, "new": receipt.created}, status=202)


def _payload(body: bytes) -> dict[str, Any] | None:
    try:
        payload = json.loads(body)
    except ValueError:
        return None
    return payload if isinstance(payload, dict) else None
