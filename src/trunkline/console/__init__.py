"""The console at /console: for the operator at three in the morning and the newcomer in the first minute.

It is a client of the API in the same process. `asking.py` puts a question to the API's own routes with the principal of
the session, so scopes, tenants and rules are the API's; nothing here knows SQL. A page is a function from a visit to a
template and its values (`visits.py`); the same function, asked for events, keeps the page's live part up to date
(`streams.py`). What a person does is a form with a token (`actions.py`).
"""
