import asyncio

from starlette.types import Message, Receive, Scope, Send

from trunkline.api.write_guard import WriteGuard

REQUEST: Scope = {"type": "http", "path": "/export", "method": "GET", "headers": []}


async def nothing() -> Message:
    return {"type": "http.disconnect"}


async def piece_by_piece(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(2):
        await send({"type": "http.response.body", "body": b"piece", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def test_the_write_guard_passes_a_whole_response() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await WriteGuard(piece_by_piece, timeout_s=10)(REQUEST, nothing, send)
    assert [message.get("body") for message in sent] == [None, b"piece", b"piece", b""]


async def test_the_write_guard_ends_a_response_that_the_client_does_not_read() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 3:
            await asyncio.Event().wait()

    await WriteGuard(piece_by_piece, timeout_s=0.001)(REQUEST, nothing, send)
    assert len(sent) == 3, "and nothing more is written"
