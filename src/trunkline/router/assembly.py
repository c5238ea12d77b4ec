"""From the platform's settings to the router's."""

from trunkline.router.config import RouterConfig
from trunkline.router.kubernetes.api import ClusterAddress
from trunkline.settings import Settings


def router_config(settings: Settings) -> RouterConfig:
    router = settings.router
    return RouterConfig(
        voice_agent_base_url=router.agent_base_url,
        tiers=router.tiers,
        lease_ttl_s=round(router.lease_ttl_s),
        draining_ttl_s=round(router.draining_ttl_s),
        heartbeat_ttl_s=router.heartbeat_ttl_s,
        cleanup_interval_s=router.cleanup_interval_s,
        reconcile_interval_s=router.reconcile_interval_s,
        hold_max_s=router.hold_max_s,
        by_heartbeat=router.pod_source == "heartbeat",
    )


def cluster_address(settings: Settings) -> ClusterAddress:
    router = settings.router
    url = (
        router.cluster_url
        or f"https://{router.cluster_host or 'kubernetes.default.svc'}:{router.cluster_port}"
    )
    token, ca = router.cluster_token_file, router.cluster_ca_file
    return ClusterAddress(url, token if token.exists() else None, ca if ca.exists() else None)
