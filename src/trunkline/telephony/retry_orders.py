"""Orders to Twilio and Plivo in the fragment of a URL, which is neither sent nor signed.

| | order | Twilio, by itself | Plivo, by itself |
|---|---|---|---|
| `ct` | milliseconds to connect | 5000 | 2000 |
| `rt` | milliseconds to the answer | 15000 | 40000 |
| `tt` | milliseconds in all | 15000, and no more | 55000, and no more |
| `rc` | tries after the first | 1 | 1 |
| `rp` | what is tried again: `ct`, `rt`, `4xx`, `5xx`, `all` | `ct` | `ct,rt` |
"""

# A status that is lost is found by the checker; until then it is worth every try.
SEND_AGAIN = "#rc=5&rp=all"
# Somebody is on the line. We answer within 1.2 s, and a proxy in front has asked a second process within 3.5 s: whoever
# is silent for 4 s is dead. The third try ends before the 12 s are over, and then the fallback URL is asked.
ASK_AGAIN = "#ct=1500&rt=4000&tt=12000&rc=2&rp=all"
