"""Reads a pod of the cluster from the API server's JSON. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trunkline.bus.router_manager import ClusterPod

# Labels that name a pod's rollout: an operator's own, a StatefulSet's, a Deployment's.
VERSION_LABELS = ("app.kubernetes.io/version", "controller-revision-hash", "pod-template-hash", "version")


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod with the annotations that protect it."""

    pod: ClusterPod
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)


def read_pod(item: Mapping[str, Any]) -> SeenPod:
    """Ready means: phase Running, condition Ready, and an IP address."""
    metadata, status = item.get("metadata") or {}, item.get("status") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    ip = status.get("podIP") or ""
    is_ready = status.get("phase") == "Running" and conditions.get("Ready") == "True" and bool(ip)
    labels = metadata.get("labels") or {}
    pod = ClusterPod(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        is_ready=is_ready,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        ip=ip,
        port=_port(item),
        version=next((labels[label] for label in VERSION_LABELS if labels.get(label)), ""),
    )
    return SeenPod(pod, metadata.get("resourceVersion") or "", metadata.get("annotations") or {})


def _port(item: Mapping[str, Any]) -> int:
    """The first port that a container names."""
    for container in (item.get("spec") or {}).get("containers") or []:
        for port in container.get("ports") or []:
            return int(port.get("containerPort") or 0)
    return 0
