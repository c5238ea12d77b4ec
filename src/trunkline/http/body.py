"""Reads the body of a request, up to a bound. Nearly all come in one ASGI message, which is the fast case."""

from starlette.requests import ClientDisconnect, Request


async def bounded_body(request: Request, bytes_max: int) -> bytes | None:
    """None for a larger body: the rest of it is not read."""
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        is_whole = not message.get("more_body", False)
        if len(body) + len(chunk) > bytes_max:
            return None
        if is_whole and not body:
            return bytes(chunk)
        body += chunk
    return bytes(body)
