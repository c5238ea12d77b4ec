"""What the documents of Twilio and Plivo share: verbs in XML, and the orders to request a URL again.

The orders are in the fragment of a URL, which is neither sent nor signed:

| | order | Twilio, by itself | Plivo, by itself |
|---|---|---|---|
| `ct` | milliseconds to connect | 5000 | 2000 |
| `rt` | milliseconds to the answer | 15000 | 40000 |
| `tt` | milliseconds in all | 15000, and no more | 55000, and no more |
| `rc` | tries after the first | 1 | 1 |
| `rp` | what is tried again: `ct`, `rt`, `4xx`, `5xx`, `all` | `ct` | `ct,rt` |
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from xml.etree.ElementTree import Element, tostring

from trunkline.telephony.carrier import AnswerFallback, Document

# The checker finds a lost status later; retries make that rare.
SEND_AGAIN = "#rc=5&rp=all"
# A person waits on the phone. The platform answers within 1.2 s, and a proxy in front has tried a second process within
# 3.5 s: no answer within 4 s means a failure. The third try ends within the 12 s, and then the carrier requests the
# fallback URL.
ASK_AGAIN = "#ct=1500&rt=4000&tt=12000&rc=2&rp=all"


def verb(tag: str, text: str = "", /, *children: Element, **attributes: str) -> Element:
    element = Element(tag, attributes)
    if text:
        element.text = text
    element.extend(children)
    return element


def redirect(url: str) -> Element:
    """Continue with another document."""
    return verb("Redirect", url, method="POST")


class XmlDocuments(ABC):
    streams = True
    can_hold = True
    # What stands before the `Response`, the verbs that speak and wait, and the order behind a URL in a document.
    declaration = ""
    speak: str
    wait: str
    ask_again = ""

    @abstractmethod
    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document: ...

    @abstractmethod
    def redirect_document(self, to: str) -> Document: ...

    @abstractmethod
    def redirect_sip(self, uri: str) -> Document: ...

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return self.document(verb(self.wait, length=str(wait_s)), redirect(again_url + self.ask_again))

    def busy_document(self, message: str) -> Document:
        return _spoken(self.declaration, self.speak, message)

    def hang_up_document(self) -> Document:
        return self.document(verb("Hangup"))

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        scheme, _, rest = fallback.url.partition(":")
        match scheme:
            case "https" | "http":
                return self.document(redirect(fallback.url))
            case "wss" | "ws":
                return self.answer_document(fallback.url, {})
            case "tel":
                return self.redirect_document(rest)
            case "sip" | "sips":
                return self.redirect_sip(fallback.url)
            case _:
                return self.busy_document(fallback.message)

    def document(self, *verbs: Element) -> Document:
        return _document(self.declaration, *verbs)


# The same document for every call that finds no free agent.
@lru_cache(maxsize=64)
def _spoken(declaration: str, speak: str, message: str) -> Document:
    return _document(declaration, verb(speak, message), verb("Hangup"))


def _document(declaration: str, *verbs: Element) -> Document:
    return Document(
        "application/xml", declaration + tostring(verb("Response", "", *verbs), encoding="unicode")
    )
