import asyncio
from typing import Any

from django.core.management.base import BaseCommand

from examples.django_orders.work import jobs


class Command(BaseCommand):
    help = "Runs jobs until it is stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        asyncio.run(jobs.run())
