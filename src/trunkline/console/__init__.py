"""The console at /console, for operators and newcomers.

It is a client of the API in the same process. `api_client.py` calls the API's own routes with the principal of the
session, so scopes, tenants and rules are the API's; nothing here uses SQL. A page is a function from a request to a
template and its values (`page_request.py`); `streams.py` calls the same function again to update the page's live part.
An action is a form with a token.
"""
