"""Answers the issues of a tracker: webhooks in, one thoughtful reply out, however many events there were.

`server` takes webhooks and appends them; `triage` has the two handlers; `issues` is the pure fold of an issue's events;
`responder` and `tracker` are what you replace by your own.
"""
