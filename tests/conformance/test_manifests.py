"""The manifests are taken by a real API server, and the router's account may do what the router does and no more."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.router import kube
from tests.support.router.kube import KubeServer
from trunkline.agent.agent import CONNECT_TIMEOUT_S, SHUTDOWN_MARGIN_S
from trunkline.router.kubernetes.api import ClusterApi
from trunkline.settings import load_settings

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
NO_CLUSTER = pytest.mark.skipif(not kube.is_there(), reason="no kube-apiserver here: `make kube` builds one")
PLURALS = {"NetworkPolicy": "networkpolicies"}
ACCOUNT = "system:serviceaccount:voice-system:smart-router"


def documents() -> list[dict[str, Any]]:
    return [doc for path in FILES for doc in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def find(kind: str, name: str) -> dict[str, Any]:
    return next(doc for doc in documents() if (doc["kind"], doc["metadata"]["name"]) == (kind, name))


def path_of(doc: dict[str, Any]) -> str:
    # The server of the tests is older than policy/v1.
    version = "policy/v1beta1" if doc["apiVersion"] == "policy/v1" else doc["apiVersion"]
    doc["apiVersion"] = version
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    plural = PLURALS.get(doc["kind"], doc["kind"].lower() + "s")
    namespace = doc["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


@pytest.fixture
async def api(kube_server: KubeServer) -> AsyncIterator[ClusterApi]:
    api = ClusterApi(kube_server.address)
    yield api
    await api.close()


@NO_CLUSTER
async def test_an_api_server_accepts_the_manifests_and_the_service_account_has_minimal_rights(
    api: ClusterApi,
) -> None:
    for doc in documents():
        answer = await api.request("POST", path_of(doc), body=doc)
        assert answer.status == 201, (doc["kind"], answer.body.get("message"))

    async def may(verb: str, resource: str, group: str = "", namespace: str = "voice-system") -> bool:
        asked = {"verb": verb, "resource": resource, "group": group, "namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": ACCOUNT, "resourceAttributes": asked},
        }
        answer = await api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
        return bool(answer.body["status"]["allowed"])

    leases = "coordination.k8s.io"
    assert all([await may(verb, "pods") for verb in ("get", "list", "watch", "patch")])
    assert all([await may(verb, "leases", leases) for verb in ("get", "create", "update", "patch")])
    assert not any([await may(verb, "pods") for verb in ("create", "delete", "update")])
    assert not any([await may(verb, "secrets") for verb in ("get", "list")])
    assert not await may("list", "pods", namespace="default")


def test_the_config_map_holds_settings_that_the_platform_understands() -> None:
    data = find("ConfigMap", "smart-router-config")["data"]
    settings = load_settings({**data, "TRUNKLINE_DATA_DIR": "/tmp"})
    assert settings.router.pod_source == "kubernetes"
    assert set(settings.router.tiers) == {"gold", "standard", "basic"}
    assert settings.roles == ("api", "router")
    assert settings.warnings == ()


def test_services_add_no_variables_to_the_routers_environment() -> None:
    """One that is called `http` would add HTTP_PORT=tcp://…, and the router would not start."""
    router = find("Deployment", "smart-router")["spec"]["template"]["spec"]
    assert router["enableServiceLinks"] is False


def test_pods_have_a_termination_grace_longer_than_a_call() -> None:
    agent = find("StatefulSet", "voice-agent")["spec"]["template"]["spec"]
    names = {entry["name"] for entry in agent["containers"][0]["env"]}
    assert "VOICE_AGENT_SHUTDOWN_TIMEOUT" not in names, "the router says how long the longest call is"
    data = find("ConfigMap", "smart-router-config")["data"]
    call_limit_s = load_settings({**data, "TRUNKLINE_DATA_DIR": "/tmp"}).carrier.time_limit_s
    # A minute more than the longest call, and the two short waits around it.
    leaving_s = call_limit_s + SHUTDOWN_MARGIN_S + 2 * CONNECT_TIMEOUT_S
    nginx = find("Deployment", "nginx-router")["spec"]["template"]["spec"]
    assert agent["terminationGracePeriodSeconds"] > leaving_s
    assert nginx["terminationGracePeriodSeconds"] >= agent["terminationGracePeriodSeconds"]


def test_every_workload_has_a_readiness_probe_and_a_disruption_budget() -> None:
    budgets = {doc["metadata"]["name"] for doc in documents() if doc["kind"] == "PodDisruptionBudget"}
    for doc in documents():
        if doc["kind"] in ("Deployment", "StatefulSet"):
            assert doc["metadata"]["name"] in budgets
            for container in doc["spec"]["template"]["spec"]["containers"]:
                assert "readinessProbe" in container


def test_the_autoscaler_uses_metrics_that_exist() -> None:
    text = (ROOT / "deploy" / "kubernetes" / "keda" / "scaled-object.yaml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name in ("trunkline_router_calls", "trunkline_router_waiting"):
        assert name in text
        assert f"`{name}`" in page


def test_the_clusters_nginx_config_is_the_rendered_template() -> None:
    template = (ROOT / "deploy" / "nginx" / "kubernetes.conf.template").read_text(encoding="utf-8")
    given: str = find("ConfigMap", "nginx-router")["data"]["default.conf"]
    fixed = [line for line in template.splitlines()[4:] if line.strip() and "${" not in line]
    assert [line for line in fixed if line not in given.splitlines()] == []
