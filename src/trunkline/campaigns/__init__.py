"""Campaigns: many leads under one policy."""
