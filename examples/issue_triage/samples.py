"""Webhooks as GitHub sends them, made up: for the demonstration and for tests."""

from typing import Any

REPOSITORY = "acme/site"


def user(login: str, kind: str = "User") -> dict[str, Any]:
    return {
        "login": login,
        "id": sum(login.encode()),
        "type": kind,
        "site_admin": False,
        "html_url": f"https://github.com/{login}",
    }


def issue(
    number: int, title: str, body: str | None, *, by: str = "ada", state: str = "open"
) -> dict[str, Any]:
    return {
        "url": f"https://api.github.com/repos/{REPOSITORY}/issues/{number}",
        "html_url": f"https://github.com/{REPOSITORY}/issues/{number}",
        "id": 444_500_000 + number,
        "number": number,
        "title": title,
        "user": user(by),
        "labels": [{"id": 1, "name": "bug", "color": "d73a4a", "default": True, "description": None}],
        "state": state,
        "locked": False,
        "assignee": None,
        "assignees": [],
        "milestone": None,
        "comments": 0,
        "created_at": "2030-05-15T15:20:18Z",
        "updated_at": "2030-05-15T15:20:18Z",
        "closed_at": None,
        "author_association": "CONTRIBUTOR",
        "body": body,
    }


def issues(action: str, about: dict[str, Any], *, by: str = "ada") -> dict[str, Any]:
    return {"action": action, "issue": about, **_around(by)}


def issue_comment(
    action: str, about: dict[str, Any], comment_id: int, body: str, *, by: str = "ada", kind: str = "User"
) -> dict[str, Any]:
    comment = {
        "url": f"https://api.github.com/repos/{REPOSITORY}/issues/comments/{comment_id}",
        "id": comment_id,
        "user": user(by, kind),
        "created_at": "2030-05-15T15:20:21Z",
        "updated_at": "2030-05-15T15:20:21Z",
        "author_association": "CONTRIBUTOR",
        "body": body,
    }
    return {"action": action, "issue": about, "comment": comment, **_around(by, kind)}


def ping() -> dict[str, Any]:
    return {"zen": "Keep it logically awesome.", "hook_id": 1, "hook": {"type": "Repository", "active": True}}


def _around(by: str, kind: str = "User") -> dict[str, Any]:
    repository = {
        "id": 186_853_002,
        "name": REPOSITORY.partition("/")[2],
        "full_name": REPOSITORY,
        "private": False,
        "owner": user(REPOSITORY.partition("/")[0]),
    }
    return {"repository": repository, "sender": user(by, kind)}
