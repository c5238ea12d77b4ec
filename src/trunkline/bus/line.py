"""How commands get to the server and their replies back: over connections that are kept between two exchanges.

Each is lent to one exchange at a time. One that broke connects again by itself at its next one.
"""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from trunkline.bus.packing import Command, told

Client = Redis | RedisCluster


class Lines:
    def __init__(self, client: Client):
        self._client = client
        self._kept: list[Any] = []

    async def ask(self, *command: Any) -> Any:
        """The reply to one command; an error of the server is raised."""
        (reply,) = await self.exchange([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to these commands, in their order, errors of the server among them."""
        if isinstance(self._client, RedisCluster):
            return await self._exchange_in_cluster(self._client, commands)
        pool: Any = self._client.connection_pool
        connection = self._kept.pop() if self._kept else await pool.get_connection()
        try:
            replies: list[Any] = await connection.exchange(commands)
        finally:
            self._kept.append(connection)
        return replies

    async def _exchange_in_cluster(self, client: RedisCluster, commands: Sequence[Command]) -> list[Any]:
        """By way of the client, which knows the nodes and not the lives of those behind its connections."""
        commands = list(told(commands, ""))
        if len(commands) == 1:
            try:
                return [await client.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline: Any = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies
