import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from examples.django_orders.models import Order
from examples.django_orders.work import Shipment, jobs, ship_order


class OutOfStock(Exception):
    pass


@csrf_exempt
@require_http_methods(["GET", "POST"])
def orders(request: HttpRequest) -> JsonResponse:
    if request.method == "GET":
        return JsonResponse(list(Order.objects.order_by("id").values("id", "item", "status")), safe=False)
    item = json.loads(request.body)["item"]
    try:
        with transaction.atomic():
            order = Order.objects.create(item=item)
            jobs.enqueue_sync(connection, ship_order, Shipment(order.pk), unique_key=str(order.pk))
            if item == "unicorn":
                raise OutOfStock  # the transaction is rolled back: no order and no job
    except OutOfStock:
        return JsonResponse({"error": f"There is no {item}."}, status=409)
    return JsonResponse({"id": order.pk}, status=201)
