"""The names that a variable may have: the one that it is documented by, and the same with `TRUNKLINE_` before it.

Kubernetes sets names of the second kind in every pod, as links to the Services of its namespace: a Service
`trunkline-http` gives TRUNKLINE_HTTP_PORT=tcp://10.0.0.7:8080. Such a link is no setting.
"""

import re

PREFIX = "TRUNKLINE_"
_LINK = re.compile(rf"{PREFIX}(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)")
_LINK_OR_PORT = re.compile(rf"{PREFIX}(?:\w+_)?PORT")
_LINKED = re.compile(r"(?:tcp|udp|sctp)://.*", re.IGNORECASE)


def spellings(name: str) -> tuple[str, ...]:
    """The documented name first. What the cluster sets has no other: the link to a Service `trunkline-kubernetes` is
    called TRUNKLINE_KUBERNETES_SERVICE_HOST, and its value is an address, as that of a setting would be."""
    other = f"{PREFIX}{name}"
    return (name,) if name.startswith(PREFIX) or _LINK.fullmatch(other) else (name, other)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has set it. The value distinguishes a port from a link."""
    return bool(_LINK.fullmatch(name) or (_LINK_OR_PORT.fullmatch(name) and _LINKED.fullmatch(value)))


def may_be_service_link(name: str) -> bool:
    return bool(_LINK.fullmatch(name) or _LINK_OR_PORT.fullmatch(name))
