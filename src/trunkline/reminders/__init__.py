"""Reminders: a call at a local time, once or by a rule. Each occurrence becomes one lead of the engine, once."""
