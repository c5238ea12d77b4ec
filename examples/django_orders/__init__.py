"""Orders in a small Django project: what follows from an order is committed with it."""
