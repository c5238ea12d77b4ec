"""A real kube-apiserver with its etcd, built by `make kube`. It has no scheduler and no kubelet: tests play both."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from trunkline.embedded.ports import free_port
from trunkline.router.kubernetes.api import ClusterAddress, ClusterApi, ClusterUnavailable

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline" / "kube"
APISERVER, ETCD = CACHE / "kube-apiserver", CACHE / "etcd"
TOKEN = "a-token-for-tests"
MERGE_PATCH = "application/merge-patch+json"


def is_there() -> bool:
    return APISERVER.exists() and ETCD.exists()


class KubeServer:
    """Starts in about five seconds. `restart` keeps what etcd has."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._etcd_port, self._peer_port, self.port = free_port(), free_port(), free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._prepare()

    async def __aenter__(self) -> "KubeServer":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def address(self) -> ClusterAddress:
        return self.at(self.port)

    def at(self, port: int) -> ClusterAddress:
        """By way of another port, where a proxy listens."""
        return ClusterAddress(
            f"https://127.0.0.1:{port}", self._folder / "token", self._folder / "certs" / "apiserver.crt"
        )

    async def start(self) -> None:
        etcd = [
            str(ETCD),
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{self._peer_port}",
            "--unsafe-no-fsync",
        ]
        self._etcd = self._run(etcd, "etcd.log")
        await self.start_server()

    async def start_server(self) -> None:
        key = self._folder / "account.key"
        server = [
            str(APISERVER),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self._folder / 'certs'}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-priority-and-fairness=false",
        ]
        self._server = self._run(server, "apiserver.log")
        api = ClusterApi(self.address)
        try:
            async with asyncio.timeout(60):
                while not await _is_ready(api):
                    assert self._server.poll() is None, (self._folder / "apiserver.log").read_text()[-2000:]
                    await asyncio.sleep(0.1)
        finally:
            await api.close()

    async def stop_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            await asyncio.to_thread(self._server.wait)
            self._server = None

    async def stop(self) -> None:
        await self.stop_server()
        if self._etcd is not None:
            self._etcd.kill()
            await asyncio.to_thread(self._etcd.wait)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, command: list[str], log: str) -> "subprocess.Popen[bytes]":
        with (self._folder / log).open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)

    def _prepare(self) -> None:
        (self._folder / "token").write_text(TOKEN, encoding="utf-8")
        (self._folder / "tokens.csv").write_text(f'{TOKEN},tests,1,"system:masters"\n', encoding="utf-8")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (self._folder / "account.key").write_bytes(pem)


class Cluster:
    """What a scheduler and a kubelet would do, in one namespace of one test."""

    def __init__(self, server: KubeServer, namespace: str):
        self.server = server
        self.namespace = namespace
        self.api = ClusterApi(server.address)
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def environment(self) -> dict[str, str]:
        """What a router needs to take its pods from here and to lead on a Lease of this namespace."""
        return {
            "POD_SOURCE": "kubernetes",
            "NAMESPACE": self.namespace,
            "KUBERNETES_API_URL": self.server.address.url,
            "KUBERNETES_TOKEN_FILE": str(self.server.address.token_file),
            "KUBERNETES_CA_FILE": str(self.server.address.ca_file),
        }

    async def open(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        answer = await self.api.request("POST", "/api/v1/namespaces", body=body)
        assert answer.status in (201, 409), answer

    async def create(
        self, name: str, *, version: str = "1", is_ready: bool = True, app: str = "voice-agent"
    ) -> str:
        """A pod that runs; returns its uid."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": app, "version": version}},
            "spec": {
                "containers": [{"name": "agent", "image": "agent", "ports": [{"containerPort": 8080}]}],
                # No kubelet will ever confirm a deletion.
                "terminationGracePeriodSeconds": 0,
            },
        }
        answer = await self.api.request("POST", self._pods, body=body)
        assert answer.status == 201, json.dumps(answer.body)
        if is_ready:
            await self.set_ready(name, True)
        return str(answer.body["metadata"]["uid"])

    async def set_ready(self, name: str, is_ready: bool) -> None:
        status = {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}],
        }
        await self._patch(f"{self._pods}/{name}/status", {"status": status})

    async def delete(self, name: str) -> None:
        answer = await self.api.request("DELETE", f"{self._pods}/{name}", query={"gracePeriodSeconds": "0"})
        assert answer.status == 200, answer

    async def annotations(self, name: str) -> dict[str, str]:
        answer = await self.api.request("GET", f"{self._pods}/{name}")
        found: dict[str, str] = answer.body["metadata"].get("annotations") or {}
        return found

    async def close(self) -> None:
        await self.api.close()

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        answer = await self.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        assert answer.status == 200, answer


async def _is_ready(api: ClusterApi) -> bool:
    try:
        return (await api.request("GET", "/api/v1/namespaces/default")).status == 200
    except (ClusterUnavailable, OSError):
        return False
