"""Which hosts get an account's credentials when a recording is fetched: the carrier's own, and no redirect target."""

from urllib.parse import urlsplit


def is_carriers_own(url: str, base_url: str, domains: tuple[str, ...]) -> bool:
    """Whether the URL leads to the API's own origin, or by HTTPS to a host of the carrier's domains."""
    try:
        wanted, api = urlsplit(url), urlsplit(base_url)
        is_api = (wanted.scheme, wanted.hostname, wanted.port) == (api.scheme, api.hostname, api.port)
    except ValueError:
        return False
    host = wanted.hostname or ""
    return is_api or (wanted.scheme == "https" and host.endswith(tuple(f".{domain}" for domain in domains)))
