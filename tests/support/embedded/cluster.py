"""A real Valkey Cluster on this machine, for tests: every slot has one node, nothing is kept."""

import asyncio
import secrets
from pathlib import Path
from types import TracebackType

from trunkline.embedded.account import choose_account
from trunkline.embedded.binaries import find_binaries, reachable_binaries
from trunkline.embedded.folder import DataFolder
from trunkline.embedded.ports import LOOPBACK, free_port
from trunkline.embedded.process import Child
from trunkline.embedded.valkey import Valkey
from trunkline.errors import EmbeddedError

SLOTS = 16384
AGREE_LIMIT_S = 30
POLL_S = 0.05


NODE_SETTINGS = {"cluster-enabled": "yes", "cluster-node-timeout": "5000", "appendonly": "no", "save": '""'}


class ClusterNode(Valkey):
    """A node also talks to the others, on a second port of its own."""

    cluster_port: int

    @property
    def settings(self) -> dict[str, str]:
        return {**NODE_SETTINGS, "cluster-port": str(self.cluster_port)}

    def spawn(self, port: int) -> Child:
        self.cluster_port = free_port()
        return super().spawn(port)

    async def command(self, *words: str | int) -> str:
        client = self.client()
        try:
            answer: bytes = await client.execute_command(*words)  # type: ignore[no-untyped-call]
            return answer.decode()
        finally:
            await client.aclose()


class Cluster:
    """`async with Cluster(folder) as cluster:` the nodes agree on all slots, and answer at `cluster.urls`."""

    def __init__(self, data_dir: Path, *, node_count: int = 3) -> None:
        self.folder = DataFolder(data_dir)
        self.nodes: list[ClusterNode] = []
        self._node_count = node_count

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    async def __aenter__(self) -> "Cluster":
        self.folder.take()
        try:
            await self._make_nodes()
            await asyncio.gather(*(node.start() for node in self.nodes))
            await self._share_slots()
            await self._meet()
            await asyncio.wait_for(self._agree(), AGREE_LIMIT_S)
        except BaseException as error:
            await self._close()
            if isinstance(error, TimeoutError):
                raise EmbeddedError(f"the Valkey cluster in {self.folder.path} does not form") from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _make_nodes(self) -> None:
        password = secrets.token_urlsafe(24)
        account = choose_account(self.folder.path / "node-0")
        binaries = await reachable_binaries(find_binaries(), account)
        for number in range(self._node_count):
            name = f"node-{number}"
            self.nodes.append(
                ClusterNode(
                    self.folder.path / name,
                    self.folder.logs / f"{name}.log",
                    account,
                    binaries,
                    password=password,
                )
            )

    async def _share_slots(self) -> None:
        bounds = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for node, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            await node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)

    async def _meet(self) -> None:
        """All meet the first; it tells them of each other."""
        first = self.nodes[0]
        for epoch, node in enumerate(self.nodes, start=1):
            await node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for node in self.nodes[1:]:
            await node.command("CLUSTER", "MEET", LOOPBACK, first.port, first.cluster_port)

    async def _agree(self) -> None:
        for node in self.nodes:
            while True:
                if await self._knows_all(node):
                    break
                await asyncio.sleep(POLL_S)

    async def _knows_all(self, node: ClusterNode) -> bool:
        info = await node.command("CLUSTER", "INFO")
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes)}" in info

    async def _close(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))
        self.folder.leave()
