"""Call lists, page by page."""

from trunkline.telephony.carrier import CallView, ListPages, ListResult, ListUnavailable

# A carrier whose pages never end is asked no further. At 20 calls a page, the smallest there is, that is a million.
ACCOUNT_PAGES_MAX = 50_000


async def whole_list(pages: ListPages) -> ListResult:
    """All pages as one list, each call once and as it was shown last. A page missing is a list missing."""
    calls: dict[str, CallView] = {}
    async for page in pages:
        if isinstance(page, ListUnavailable):
            return page
        calls |= {call.call_id: call for call in page}
    return list(calls.values())
