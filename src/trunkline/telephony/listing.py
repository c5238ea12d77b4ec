"""Call lists, page by page."""

from trunkline.telephony.carrier import CallView, ListPages, ListResult, ListUnavailable

# Bounds a list that never ends. At 20 calls per page, the smallest page size of any carrier, that is a million calls.
ACCOUNT_PAGES_MAX = 50_000


async def whole_list(pages: ListPages) -> ListResult:
    """All pages as one list, each call once with its last view. If a page is missing, the list is unavailable."""
    calls: dict[str, CallView] = {}
    async for page in pages:
        if isinstance(page, ListUnavailable):
            return page
        calls |= {call.call_id: call for call in page}
    return list(calls.values())
