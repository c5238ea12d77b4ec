"""The HTTP face of the platform. `application.create_api` shows the whole of it.

A request passes, from the outside in: `request_context` (its id, its log lines, every error's shape), `body_guard`
(size and pace of its body), `auth` (whose key it carries), then one thin function of `routes/`.
"""
