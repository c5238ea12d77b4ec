"""Trunkline places and routes the calls of voice agents."""

__version__ = "0.1.0"
