"""The HTTP API of the platform. `application.create_api` assembles it.

A request passes, from the outside in: `request_context` (its id, its log lines, every error's shape), `body_guard`
(size and pace of its body), `auth` (its API key), then one thin function of `routes/`.
"""
