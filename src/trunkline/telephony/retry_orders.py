"""Orders to Twilio and Plivo in the fragment of a URL, which is neither sent nor signed.

| | order | Twilio, by itself | Plivo, by itself |
|---|---|---|---|
| `ct` | milliseconds to connect | 5000 | 2000 |
| `rt` | milliseconds to the answer | 15000 | 40000 |
| `tt` | milliseconds in all | 15000, and no more | 55000, and no more |
| `rc` | tries after the first | 1 | 1 |
| `rp` | what is tried again: `ct`, `rt`, `4xx`, `5xx`, `all` | `ct` | `ct,rt` |
"""

# The checker finds a lost status later; retries make that rare.
SEND_AGAIN = "#rc=5&rp=all"
# A person waits on the phone. The platform answers within 1.2 s, and a proxy in front has tried a second process within
# 3.5 s: no answer within 4 s means a failure. The third try ends within the 12 s, and then the carrier requests the
# fallback URL.
ASK_AGAIN = "#ct=1500&rt=4000&tt=12000&rc=2&rp=all"
