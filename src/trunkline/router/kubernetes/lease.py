"""Leadership on the cluster's Lease.

No wall clocks are compared: a candidate takes the lease once it has seen it unchanged for its whole duration by its own
monotonic clock. The holder trusts its lease until the renew deadline, counted from before its request. The term is the
Lease's resourceVersion when it was taken: it grows for ever, also when the Lease is deleted and created again.
"""

from datetime import UTC, datetime
from typing import Any

from trunkline.clock import Clock
from trunkline.loops.leader import Election, LeaseTimes
from trunkline.router.kubernetes.api import ClusterApi, ClusterUnavailable

ROLE = "router"


class ClusterLeadership(Election):
    name = "cluster_leadership"

    def __init__(
        self, api: ClusterApi, clock: Clock, namespace: str, lease: str, identity: str, times: LeaseTimes
    ):
        super().__init__(clock, ROLE, f"{identity}_", times)
        self._api = api
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._lease = lease
        self._seen_version = ""
        self._seen_at_s = float("-inf")

    async def _release(self, term: int) -> None:
        answer = await self._api.request("GET", f"{self._leases}/{self._lease}")
        if answer.status == 200 and answer.body["spec"].get("holderIdentity") == self._holder:
            answer.body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._api.request("PUT", f"{self._leases}/{self._lease}", body=answer.body)

    async def _acquire(self) -> int | None:
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
