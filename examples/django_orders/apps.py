from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class OrdersConfig(AppConfig):
    name = "examples.django_orders"
    label = "orders"

    def ready(self) -> None:
        post_migrate.connect(_prepare_jobs, sender=self)


def _prepare_jobs(**_: Any) -> None:
    """`manage.py migrate` makes the tables of jobs too."""
    from examples.django_orders.work import jobs

    jobs.prepare_sync()
