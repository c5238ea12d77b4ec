"""Leadership on the cluster's Lease.

No wall clocks are compared: a candidate takes the lease once it has seen it unchanged for its whole duration by its own
monotonic clock. The holder trusts its lease until the renew deadline, counted from before its request. The term is the
Lease's resourceVersion when it was taken: it grows for ever, also when the Lease is deleted and created again.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from trunkline.clock import Clock
from trunkline.loops.base import Loop
from trunkline.loops.leader import LeaseTimes
from trunkline.router.kubernetes.api import ClusterApi, ClusterUnavailable
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

ROLE = "router"


class ClusterLeadership(Loop):
    name = "cluster_leadership"

    def __init__(
        self, api: ClusterApi, clock: Clock, namespace: str, lease: str, identity: str, times: LeaseTimes
    ):
        super().__init__(times.retry_s)
        self._api = api
        self._clock = clock
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._lease = lease
        # A restarted process is another holder, also under the same pod name.
        self._holder = f"{identity}_{uuid4().hex[:8]}"
        self._times = times
        self._term: int | None = None
        self._trusted_until_s = float("-inf")
        self._seen_version = ""
        self._seen_at_s = float("-inf")

    @property
    def term(self) -> int | None:
        """None unless this process may act as leader by its own clock."""
        return self._term if self._clock.monotonic_s() < self._trusted_until_s else None

    async def run_once(self) -> int:
        requested_at_s = self._clock.monotonic_s()
        term = await self._take_or_renew()
        if term != self._term:
            log.info("leader.elected" if term else "leader.lost", role=ROLE, term=term)
        self._term = term
        self._trusted_until_s = requested_at_s + self._times.trust_s if term else float("-inf")
        metrics.LEADER.labels(ROLE).set(1 if term else 0)
        return 1 if term else 0

    async def resign(self) -> None:
        """Free the Lease, so that the next leader begins at once."""
        if self._term is None:
            return
        self._term, self._trusted_until_s = None, float("-inf")
        metrics.LEADER.labels(ROLE).set(0)
        answer = await self._api.request("GET", f"{self._leases}/{self._lease}")
        if answer.status == 200 and answer.body["spec"].get("holderIdentity") == self._holder:
            answer.body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._api.request("PUT", f"{self._leases}/{self._lease}", body=answer.body)

    async def _take_or_renew(self) -> int | None:
        answer = await self._api.request("GET", f"{self._leases}/{self._lease}")
        if answer.status == 404:
            return await self._create()
        if answer.status != 200:
            raise ClusterUnavailable(f"the lease answered with {answer.status}")
        lease = answer.body
        holder = lease["spec"].get("holderIdentity") or ""
        if holder == self._holder:
            return await self._write(lease, taken=False)
        return await self._write(lease, taken=True) if self._is_free(lease, holder) else None

    def _is_free(self, lease: dict[str, Any], holder: str) -> bool:
        now_s, version = self._clock.monotonic_s(), lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at_s = version, now_s
        lasts_s = max(self._times.ttl_s, float(lease["spec"].get("leaseDurationSeconds") or 0))
        return not holder or now_s - self._seen_at_s >= lasts_s

    async def _create(self) -> int | None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._lease, "namespace": self._namespace},
            "spec": self._spec(transitions=0),
        }
        answer = await self._api.request("POST", self._leases, body=body)
        if answer.status == 409:
            return None
        if answer.status not in (200, 201):
            raise ClusterUnavailable(f"the lease cannot be made: {answer.status}")
        return int(answer.body["metadata"]["resourceVersion"])

    async def _write(self, lease: dict[str, Any], *, taken: bool) -> int | None:
        """Take or renew it. The request carries the version that was read, so the server refuses one of two writers."""
        spec = lease["spec"]
        if taken:
            lease["spec"] = self._spec(transitions=int(spec.get("leaseTransitions") or 0) + 1)
        else:
            lease["spec"] = {**spec, "renewTime": _now(), "leaseDurationSeconds": round(self._times.ttl_s)}
        answer = await self._api.request("PUT", f"{self._leases}/{self._lease}", body=lease)
        if answer.status == 409:
            return None
        if answer.status != 200:
            raise ClusterUnavailable(f"the lease cannot be written: {answer.status}")
        version = int(answer.body["metadata"]["resourceVersion"])
        return version if taken or self._term is None else self._term

    def _spec(self, transitions: int) -> dict[str, Any]:
        now = _now()
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": max(1, round(self._times.ttl_s)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }


def _now() -> str:
    """For people who read the Lease; no decision depends on it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
