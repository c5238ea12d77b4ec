"""Orders in a FastAPI application with SQLAlchemy: what follows from an order is committed with it."""
