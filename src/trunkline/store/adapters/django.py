"""Django: `django.db.connection`, or one of `django.db.connections`, inside `transaction.atomic()`."""

from collections.abc import Callable
from typing import Any

from django.db import transaction

from trunkline.errors import NotInTransaction
from trunkline.store.adapters import refusal


class DjangoAdapter:
    def __init__(self, connection: Any):
        self._connection = connection

    def call(self, function: str, text: str) -> str:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise refusal("Django's connection", "with transaction.atomic(): …")
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {function.replace('%', '%%')}(%s::text)", [text])
            answer: str = cursor.fetchone()[0]
        return answer

    def after_commit(self, then: Callable[[], None]) -> bool:
        if not self._connection.in_atomic_block:
            return False  # the application commits by hand, and Django does not say when
        transaction.on_commit(then, using=self._connection.alias, robust=True)
        return True


def adapt(tx: Any) -> DjangoAdapter:
    if getattr(tx, "vendor", None) != "postgresql":
        raise NotInTransaction(
            "Of Django give django.db.connection, or one of django.db.connections, to Postgres."
        )
    return DjangoAdapter(tx)
