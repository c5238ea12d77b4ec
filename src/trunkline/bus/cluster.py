"""A Valkey cluster: redis-py knows its nodes, follows their redirects and holds the connections."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from trunkline.bus.server import Command, resolve


class Cluster:
    """As `Server`. The node of a command is not known beforehand, so its run id is sent empty, and scripts read it
    themselves."""

    def __init__(self, client: RedisCluster):
        self._client = client

    async def ask(self, *command: Any) -> Any:
        """The reply to one command; an error of the server is raised."""
        (reply,) = await self.exchange([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to these commands, in their order, errors of the servers among them."""
        commands = list(resolve(commands, ""))
        if len(commands) == 1:
            try:
                return [await self._client.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline: Any = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def close(self) -> None:
        """Close the connections, those in use too. The next exchange opens others."""
        await self._client.aclose()
