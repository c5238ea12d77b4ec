"""Settings of the router: pods, tiers, leases."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trunkline.settings.tiers import Tiers, parse_tiers
from trunkline.settings.values import (
    Allowed,
    Folder,
    HttpUrl,
    Port,
    Seconds,
    SocketUrl,
    Switch,
    Text,
    TierText,
    lower,
    parse_duration_s,
)
from trunkline.settings.variables import Group, env, operator_env


class Router(Group):
    """Handing calls to pods."""

    key_prefix: Text = env(
        "ROUTER_KEY_PREFIX",
        "voice",
        "First part of the router's keys. On a cluster it becomes the hash tag `{voice}`.",
    )
    agent_base_url: SocketUrl = operator_env(
        "VOICE_AGENT_BASE_URL", "wss://localhost:8081", "Base of the pods' WebSocket URLs."
    )
    heartbeat_ttl_s: Seconds = env(
        "VOICE_AGENT_HEARTBEAT_TTL", "90s", "A pod without a heartbeat for this long counts as gone."
    )
    tier_config: TierText = operator_env(
        "TIER_CONFIG",
        "{}",
        "Tiers of pods, as JSON. `{}`: one tier, `standard`, whose pods take calls of every merchant, one at a time.",
    )
    cleanup_interval_s: Seconds = env(
        "CLEANUP_INTERVAL",
        "30s",
        "How often the pool manager searches for pods that are missing from their pool.",
    )
    lease_ttl_s: Seconds = env("LEASE_TTL", "24h", "The longest time that a call holds its pod.")
    draining_ttl_s: Seconds = env("DRAINING_TTL", "6m", "An operator's drain ends by itself after this.")
    reconcile_interval_s: Seconds = env(
        "RECONCILE_INTERVAL",
        "60s",
        "How often the pool manager corrects pools, tiers and merchants' tiers by Postgres.",
    )
    hold_max_s: Annotated[
        float,
        BeforeValidator(parse_duration_s),
        Field(ge=0, le=3600),
        Allowed("a duration up to `1h`; `0` for none"),
    ] = env(
        "ROUTER_HOLD_MAX",
        "20s",
        "How long an answered call may wait for a pod. `0`: it gets the busy message at once.",
    )
    agents: Annotated[Literal["ours", "elsewhere"], BeforeValidator(lower)] = operator_env(
        "AGENTS",
        "ours",
        "Whose agents take the calls. `ours`: a lead is dialled only with a reserved slot of a pod. `elsewhere`: "
        "external agents answer, and calls are dialled without a slot; merchants and pools can override it one by one.",
    )
    is_open: Switch = env(
        "ROUTER_API_OPEN",
        "false",
        "Require no key at the router's own endpoints. Only for a network that no other client can reach.",
    )
    pod_source: Annotated[Literal["heartbeat", "kubernetes"], BeforeValidator(lower)] = operator_env(
        "POD_SOURCE", "heartbeat", "The source of pods: their own heartbeats, or the Kubernetes cluster."
    )
    namespace: Text = operator_env("NAMESPACE", "default", "The namespace whose pods are watched.")
    label_selector: Text = operator_env(
        "POD_LABEL_SELECTOR", "app=voice-agent", "Which pods of it are agents."
    )
    cluster_url: HttpUrl | None = env(
        "KUBERNETES_API_URL",
        None,
        "The URL of the cluster's API server. Unset, the one that the cluster announces.",
    )
    cluster_host: Text | None = env("KUBERNETES_SERVICE_HOST", None, "Set by the cluster in every pod.")
    cluster_port: Port = env("KUBERNETES_SERVICE_PORT", 443, "Set by the cluster in every pod.")
    cluster_token_file: Folder = env(
        "KUBERNETES_TOKEN_FILE",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "The token with which this process authenticates to the API server.",
    )
    cluster_ca_file: Folder = env(
        "KUBERNETES_CA_FILE",
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        "The certificate authority of the API server.",
    )
    lease_namespace: Text | None = env(
        "LEADER_ELECTION_NAMESPACE", None, "The namespace of the pool manager's Lease. Unset, NAMESPACE."
    )
    lease_name: Text = env(
        "LEADER_ELECTION_LOCK_NAME", "smart-router-leader", "Name of the pool manager's Lease on a cluster."
    )

    @property
    def tiers(self) -> Tiers:
        return parse_tiers(self.tier_config)
