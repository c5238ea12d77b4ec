"""Matching due leads with free channels, and dialling each at most once."""
