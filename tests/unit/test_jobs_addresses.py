"""A tenant's URL leads to the public internet or nowhere."""

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from trunkline.http.outgoing import AddressRefused, PublicResolver, check_url, is_public


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2001:4860:4860::8888", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.5.4",
        "192.168.1.1",
        "169.254.169.254",  # metadata
        "100.64.0.1",  # carrier-grade NAT
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",  # metadata
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
    ],
)
def test_private_addresses_are_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "url", ["https://example.com/hook", "https://example.com:8443/a?b=c", "https://8.8.8.8/x"]
)
def test_a_good_url_has_no_problem(url: str) -> None:
    assert check_url(url) is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.com", "https://"),
        ("ftp://example.com", "https://"),
        ("file:///etc/passwd", "https://"),
        ("https:///path", "no host"),
        ("", "https://"),
        ("https://user:pw@example.com", "user or a password"),
        ("https://127.0.0.1/x", "not public"),
        ("https://[::1]/x", "not public"),
        ("https://[::ffff:10.0.0.1]:443/x", "not public"),
        ("https://169.254.169.254/latest/meta-data", "not public"),
        ("https://example.com:99999", "not a URL"),
        ("https://example.com/" + "x" * 2000, "more than 2000"),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(url: str, said: str) -> None:
    problem = check_url(url)
    assert problem is not None
    assert said in problem


class Answers(AbstractResolver):
    def __init__(self, *addresses: str):
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self._addresses
        ]

    async def close(self) -> None: ...


async def test_a_name_of_public_addresses_resolves_to_them() -> None:
    found = await PublicResolver(Answers("8.8.8.8", "1.1.1.1")).resolve("example.com", 443)
    assert [result["host"] for result in found] == ["8.8.8.8", "1.1.1.1"]


async def test_a_host_name_with_one_private_address_is_refused() -> None:
    with pytest.raises(AddressRefused, match=r"evil.example resolves to an address that is not public"):
        await PublicResolver(Answers("8.8.8.8", "10.0.0.7")).resolve("evil.example", 443)


async def test_odd_spellings_of_loopback_are_refused_by_what_they_resolve_to() -> None:
    for spelling in ("2130706433", "0x7f000001", "127.1"):
        with pytest.raises(OSError):  # noqa: PT011, refused, or not resolved at all
            await PublicResolver().resolve(spelling, 443)
