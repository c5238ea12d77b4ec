"""What follows from an order: a job ships it, and a mailbox gathers what the customer is to be told."""

import os

import msgspec
from sqlalchemy import update

from examples.fastapi_orders.orders import DATABASE_URL, Order, Session
from trunkline.jobs import Jobs, Run, job
from trunkline.mailbox import Mailbox, Mailboxes, Write, mailbox
from trunkline.store.database import Connection


class Shipment(msgspec.Struct):
    order_id: int


@job("ship_order")
async def ship_order(shipment: Shipment, run: Run) -> None:
    """It may run twice: the second time the order is no longer `placed`, and nothing happens."""
    async with Session.begin() as session:
        shipped = await session.execute(
            update(Order)
            .where(Order.id == shipment.order_id, Order.status == "placed")
            .values(status="shipped")
            .returning(Order.id)
        )
        if shipped.scalar() is not None:
            await mailboxes.append(session, "order", str(shipment.order_id), "shipped", {})


@mailbox("order")
async def tell_customer(order: Mailbox) -> Write:
    """Everything that happened to an order since the customer heard of it last is one message."""
    text = " and ".join(event.type for event in order.events)

    async def write(tx: Connection) -> None:
        await tx.execute("INSERT INTO order_notes (order_id, text) VALUES ($1, $2)", int(order.key), text)

    return write


jobs = Jobs(DATABASE_URL, [ship_order])
mailboxes = Mailboxes(DATABASE_URL, os.environ["REDIS_URL"], [tell_customer], prefix="fastapi-orders")
