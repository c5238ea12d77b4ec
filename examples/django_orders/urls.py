from django.urls import path

from examples.django_orders.views import orders

urlpatterns = [path("orders", orders)]
