"""Leads: how they come in (`ingest`), what their calls add up to (`fold`), and what follows (`outcomes`)."""
