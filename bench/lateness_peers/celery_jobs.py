# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""Celery: the worker takes every delayed job at once and holds it in memory until it is due.

Handlers run in the worker's own thread (`solo`), which measured no later than its pool of threads.
"""

import json
import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime

from celery import Celery

plan = json.load(sys.stdin)
due_s = plan["due_s"]
late_ms = [None] * len(due_s)
app = Celery("peer", broker=plan["redis_url"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=0,  # no limit, which is what a worker with many delayed jobs is told to have
    worker_redirect_stdouts=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)
logging.disable(logging.CRITICAL)


@app.task(name="handle")
def handle(n):
    late_ms[n] = (time.time() - due_s[n]) * 1000


def enqueue():
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for n, due in enumerate(due_s):
            handle.apply_async((n,), eta=datetime.fromtimestamp(due, UTC), producer=producer)


def report():
    """From inside the worker's own process: a thread of it."""
    enqueue()
    while None in late_ms and time.time() < plan["give_up_s"]:
        time.sleep(0.2)
    print(json.dumps(late_ms), flush=True)
    os._exit(0)


threading.Thread(target=report, daemon=True).start()
app.worker_main(["worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"])
