"""Where replies go. A tracker has no idempotent "post", so each reply carries a mark by which it is found again."""

from typing import Protocol

from aiohttp import ClientSession, ClientTimeout

API = "https://api.github.com"
TIMEOUT = ClientTimeout(total=20)


class Tracker(Protocol):
    async def comment(self, issue: str, mark: str, body: str) -> None:
        """Post this reply, unless the mark says that it is there."""
        ...


class Console:
    """Prints instead of posting."""

    async def comment(self, issue: str, mark: str, body: str) -> None:
        print(f"── {issue}\n{body}\n", flush=True)  # noqa: T201


class GitHub:
    """Posts as the app or person whom the token belongs to. Use a bot's token: replies of bots are not answered."""

    def __init__(self, token: str, api: str = API):
        self._api = api
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    async def comment(self, issue: str, mark: str, body: str) -> None:
        repository, _, number = issue.rpartition("#")
        comments = f"{self._api}/repos/{repository}/issues/{number}/comments"
        hidden = f"<!-- {mark} -->"
        async with ClientSession(headers=self._headers, timeout=TIMEOUT, raise_for_status=True) as session:
            if not await self._is_there(session, comments, hidden):
                async with session.post(comments, json={"body": f"{body}\n\n{hidden}"}):
                    pass

    async def _is_there(self, session: ClientSession, comments: str, hidden: str) -> bool:
        page = 1
        while True:
            async with session.get(comments, params={"per_page": 100, "page": page}) as answer:
                found = await answer.json()
            if any(hidden in (each["body"] or "") for each in found):
                return True
            if len(found) < 100:
                return False
            page += 1
