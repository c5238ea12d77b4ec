"""Keeps a copy of the cluster's pods: one list, then a watch from where the list ended.

A broken watch resumes at its last version; only when the server no longer has that version (410) does the reflector
list everything again. Every watch is short, which bounds the time until it detects a dead connection.

A list and a watch may overtake each other. Older state never replaces newer: the reflector requests a list from before
the watch's last event again, and skips events from before the last list.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trunkline.loops.base import Loop
from trunkline.router.kubernetes.api import ClusterApi, ClusterUnavailable
from trunkline.routing import ClusterPod
from trunkline.telemetry import get_logger

log = get_logger(__name__)

PAGE = 500
WATCH_S = 30.0
GONE = 410
# Requests for a list that the watch overtook.
LISTS_MAX = 3
# Labels that name a pod's rollout: an operator's own, a StatefulSet's, a Deployment's.
VERSION_LABELS = ("app.kubernetes.io/version", "controller-revision-hash", "pod-template-hash", "version")


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod with the annotations that protect it."""

    pod: ClusterPod
    resource_version: str
    annotations: Mapping[str, str] = field(default_factory=dict)


class Reflector(Loop):
    """`pods` is the copy; `take_changes` returns the names of pods that changed since the last call."""

    name = "kubernetes_watch"

    def __init__(self, api: ClusterApi, namespace: str, selector: str, *, watch_s: float = WATCH_S):
        super().__init__(0)
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        self._watch_s = watch_s
        self._version = ""
        self._listed = 0
        self._changed: set[str] = set()
        self._listing = asyncio.Lock()
        self.pods: dict[str, SeenPod] = {}
        # False until the first complete list.
        self.is_synced = False
        self.lists = 0

    async def run_once(self) -> int:
        """One watch, after a list if there is no version to watch from. A failure is retried with the loop's
        backoff."""
        if not self._version:
            await self.list_all()
        return await self._watch()

    async def wait(self) -> None:
        """The server ended the watch normally: the next one begins after a short random pause, never in a tight
        loop."""
        await self.pause(random.uniform(0.05, 0.2))  # noqa: S311

    def watch_from(self, version: str) -> None:
        """Set the version at which the next watch begins; '' lists first."""
        self._version = version

    def take_changes(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    async def list_all(self) -> None:
        """Replace the copy by a complete list. Pods that are not in it are gone."""
        async with self._listing:
            for _ in range(LISTS_MAX):
                items, version = await self._pages()
                if _number(version) >= _number(self._version):
                    break
            else:
                # A cluster restored from a backup counts from an older version: accept the next list as it is.
                self._version = ""
                raise ClusterUnavailable("the list of pods is older than what was watched")
            listed = {seen.pod.name: seen for seen in map(read_pod, items)}
            for name in self.pods.keys() | listed.keys():
                if self.pods.get(name) != listed.get(name):
                    self._changed.add(name)
            self.pods = listed
            self._version, self._listed = version, _number(version)
            self.is_synced = True
            self.lists += 1

    async def _pages(self) -> tuple[list[dict[str, Any]], str]:
        items: list[dict[str, Any]] = []
        query = {**self._selector, "limit": str(PAGE)}
        while True:
            answer = await self._api.request("GET", self._path, query=query)
            if answer.status != 200:
                raise ClusterUnavailable(f"the list of pods answered with {answer.status}")
            items += answer.body.get("items") or []
            metadata = answer.body.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            query["continue"] = metadata["continue"]

    async def _watch(self) -> int:
        query = {**self._selector, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        count = 0
        async for event in self._api.watch(self._path, query, lasts_s=self._watch_s):
            if not self._apply(event):
                break
            count += 1
            if self.stopping:
                break
        return count

    def _apply(self, event: Mapping[str, Any]) -> bool:
        """False: the watch cannot continue from this version."""
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = item.get("code")
            if code == GONE:
                log.info("kubernetes.watch_expired")
                self._version = ""
                return False
            raise ClusterUnavailable(f"the watch of pods answered with {code}")
        version = str((item.get("metadata") or {}).get("resourceVersion") or "")
        if version and _number(version) <= self._listed:
            return True
        if kind != "BOOKMARK":
            seen = read_pod(item)
            if kind == "DELETED":
                self.pods.pop(seen.pod.name, None)
            else:
                self.pods[seen.pod.name] = seen
            self._changed.add(seen.pod.name)
        self._version = version or self._version
        return True


def _number(version: str) -> int:
    """Versions are growing numbers. One that is no number counts as 0."""
    return int(version) if version.isascii() and version.isdigit() else 0


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
