"""Mailboxes: events are triggers, the entity is the unit. See `inbox` for the way in and `worker` for the way out."""
