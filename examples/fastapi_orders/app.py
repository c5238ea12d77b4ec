"""The web application. It only enqueues and appends: `worker` does the work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import select

from examples.fastapi_orders.orders import Note, Order, Session, create_tables
from examples.fastapi_orders.work import Shipment, jobs, mailboxes, ship_order


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await create_tables()
    async with jobs, mailboxes:  # makes their tables; from here on workers are woken over its connections
        yield


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    item: str


class OutOfStock(Exception):
    pass


@app.post("/orders", status_code=201)
async def place_order(new: NewOrder) -> dict[str, int]:
    try:
        async with Session.begin() as session:
            order = Order(item=new.item)
            session.add(order)
            await session.flush()
            await mailboxes.append(session, "order", str(order.id), "placed", {"item": new.item})
            await jobs.enqueue(session, ship_order, Shipment(order.id), unique_key=str(order.id))
            if new.item == "unicorn":
                raise OutOfStock  # the transaction is rolled back: no order, no job, no event
            order_id = order.id
    except OutOfStock:
        raise HTTPException(409, f"There is no {new.item}.") from None
    return {"id": order_id}


@app.get("/orders")
async def list_orders() -> list[dict[str, object]]:
    async with Session() as session:
        orders = (await session.scalars(select(Order).order_by(Order.id))).all()
        notes = (await session.scalars(select(Note).order_by(Note.id))).all()
    return [
        {
            "id": order.id,
            "item": order.item,
            "status": order.status,
            "told": [note.text for note in notes if note.order_id == order.id],
        }
        for order in orders
    ]
