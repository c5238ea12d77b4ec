"""What follows from an order: a job ships it."""

import os

import msgspec

from examples.django_orders.models import Order
from trunkline.jobs import Jobs, Run, job


class Shipment(msgspec.Struct):
    order_id: int


@job("ship_django_order")
async def ship_order(shipment: Shipment, run: Run) -> None:
    """It may run twice: the second time the order is no longer `placed`, and nothing happens."""
    await Order.objects.filter(pk=shipment.order_id, status="placed").aupdate(status="shipped")


jobs = Jobs(os.environ["DATABASE_URL"], [ship_order])
