"""The bodies of the router's responses: the documented fields, and after them the platform's additions."""

from typing import Any

from trunkline.bus.router_views import Drained, PodView, RouterCall, RouterCounts
from trunkline.router.allocator import Allocated, Released
from trunkline.router.pods import HeartbeatResult, PodHeartbeat, Reset
from trunkline.router.requests import Page


def allocation(allocated: Allocated) -> dict[str, Any]:
    return {
        "pod_name": allocated.pod,
        "ws_url": allocated.ws_url,
        "source_pool": allocated.source_pool,
        "allocated_at": f"{allocated.allocated_at.replace(tzinfo=None).isoformat(timespec='seconds')}Z",
        "was_existing": allocated.was_existing,
        # The stream's parameter `token`: without it the pod refuses the stream.
        "token": allocated.token,
    }


def released(released: Released) -> dict[str, Any]:
    return {
        "success": True,
        "pod_name": released.pod,
        "released_to_pool": released.source_pool,
        "was_draining": released.was_draining,
    }


def drained(pod: str, drained: Drained, message: str) -> dict[str, Any]:
    return {
        "success": True,
        "pod_name": pod,
        "has_active_call": drained.has_active_call,
        "message": message,
        "is_draining": drained.is_draining,
    }


def heartbeat(beat: PodHeartbeat, result: HeartbeatResult, call_time_limit_s: float) -> dict[str, Any]:
    return {
        "success": True,
        "pod_name": beat.pod,
        "tier": result.tier,
        "draining": result.draining,
        "call_sid": result.calls[0] if result.calls else "",
        "calls": result.calls,
        "max_concurrent": result.max_concurrent,
        "again_in_s": result.again_in_s,
        # So that a pod that is leaving waits for the longest possible call.
        "call_time_limit_s": call_time_limit_s,
        "stream_secrets": [secret.hex() for secret in result.secrets],
    }


def reset(pod: str, done: Reset) -> dict[str, Any]:
    messages = []
    if done.still_named:
        messages.append(
            "Pod is free here, but its heartbeats still name a call: a person may be talking, or its agent "
            "hangs. Its agent may refuse calls until that call ends; if it does not, restart the pod."
        )
    if done.hanging:
        # The pod itself counts them, so no write of the router makes room for another call.
        messages.append(
            f"Handlers of {len(done.hanging)} calls that are over hang in the pod: it takes so many calls fewer until "
            "they end. A reset does not end them: restart the pod."
        )
    return {
        "success": True,
        "pod_name": pod,
        "ended_calls": done.calls,
        "still_named": done.still_named,
        "hanging": done.hanging,
        "status": done.status,
        "message": " ".join(messages) or "Pod is free",
    }


def status(counts: RouterCounts, is_leader: bool) -> dict[str, Any]:
    pools: dict[str, int] = {}
    for pool in counts.pools:
        pools[f"{pool.tier}:available"] = pool.available
        pools[f"{pool.tier}:assigned"] = pool.assigned
    return {
        "pools": pools,
        "active_calls": counts.calls,
        "is_leader": is_leader,
        "status": "up",
        "waiting": counts.waiting,
        "free": {pool.tier: pool.room for pool in counts.pools},
        "kept": counts.kept,
        "kept_by_tier": {pool.tier: pool.kept for pool in counts.pools},
    }


def pod(view: PodView) -> dict[str, Any]:
    lease = view.lease or (view.calls[0] if view.calls else "")
    return {
        "pod_name": view.name,
        "tier": view.tier,
        "is_draining": view.draining,
        "has_active_lease": lease != "",
        "lease_call_sid": lease,
        "status": view.status,
        "calls": view.calls,
        "ip": view.ip,
        "port": view.port,
        "version": view.version,
        "hanging": view.hanging,
        "handing_over": view.handing_over,
    }


def call(view: RouterCall) -> dict[str, Any]:
    return {
        "call_sid": view.call_sid,
        "pod_name": view.pod,
        "source_pool": view.source_pool,
        "merchant_id": view.merchant_id,
        "allocated_at": view.allocated_at_s,
    }


def page(items: list[dict[str, Any]], page: Page) -> dict[str, Any]:
    """`next_cursor` is null at the end of the list. Pods and calls that come and go meanwhile may be missed."""
    following = str(page.first + page.count) if len(items) == page.count else None
    return {"items": items, "next_cursor": following}
