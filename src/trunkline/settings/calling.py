"""Settings of calls: how they are placed, and through which carriers."""

from trunkline.settings.field import Group, env
from trunkline.settings.values import (
    AnswerUrl,
    HttpUrl,
    Rate,
    Seconds,
    Secret,
    Switch,
    Text,
)


class DispatchSettings(Group):
    """Pairing due leads with free channels."""

    grant_ttl_s: Seconds = env(
        "GRANT_TTL", "5s", "A grant that no attempt followed within this time goes back to the queue."
    )
    send_late_max_s: Seconds = env(
        "SEND_LATE_MAX",
        "0.5s",
        "A call that would leave later than this is not sent, and comes again.",
    )
    idle_wait_s: Seconds = env("DIALER_IDLE_WAIT", "1s", "The longest a dialer sleeps before it asks again.")
    ahead_s: Seconds = env(
        "DIAL_AHEAD",
        "100ms",
        "So long before its time a call is made ready, with its channel; it leaves on time. At most `100ms`.",
    )
    batch_max: int = env(
        "DIALER_BATCH_SIZE", 16, "Grants that a dialer takes at most in one go.", ge=1, le=1000
    )
    fallback_starts_per_s: int = env(
        "FALLBACK_CALLS_PER_SECOND",
        20,
        "Calls that all dialers together start per second at most while Valkey is away and Postgres alone finds"
        " channels. One of them asks; another takes over within seconds.",
        ge=1,
        le=100,
    )
    loader_jitter_max_s: Seconds = env(
        "LOADER_JITTER_MAX",
        "5s",
        "How much later than every five seconds a walk over waiting leads may begin once 100,000 of them wait.",
    )


class CarrierSettings(Group):
    """What holds for the calls of every carrier."""

    request_timeout_s: Seconds = env(
        "CARRIER_REQUEST_TIMEOUT",
        "5s",
        "How long a carrier may take to answer. Past it the attempt is in doubt.",
    )
    ring_timeout_s: Seconds = env("RING_TIMEOUT", "30s", "How long a phone may ring, `1s` to `10m`.")
    time_limit_s: Seconds = env(
        "CALL_TIME_LIMIT", "1h", "The longest call, `1s` to `24h`. The carrier ends it then."
    )
    machine_detection: Switch = env(
        "MACHINE_DETECTION",
        "false",
        "Have the carrier tell whether a machine answered (Twilio, Plivo). It may cost extra.",
        rank="operator",
    )
    record_calls: Switch = env(
        "RECORD_CALLS",
        "false",
        "Have the carrier record calls (Twilio, Exotel) and tell where. Whether that is allowed is for you to know.",
        rank="operator",
    )

    answer_fallback_url: AnswerUrl | None = env(
        "ANSWER_FALLBACK_URL",
        None,
        "What an answered call does that finds no agent and can wait no longer: `https:` follows another "
        "document, `wss:` streams to another agent, `tel:` and `sip:` dial. "
        "Which carrier can do which: docs/reference/carriers.md.",
    )
    answer_fallback_message: Text = env(
        "ANSWER_FALLBACK_MESSAGE",
        "All agents are currently busy. Please try again later.",
        "What such a call hears where there is no ANSWER_FALLBACK_URL, or the carrier cannot follow it.",
    )


class TwilioSettings(Group):
    base_url: HttpUrl = env(
        "TWILIO_BASE_URL", "https://api.twilio.com", "Where Twilio's API is.", rank="carrier"
    )
    account_sid: Text | None = env(
        "TWILIO_ACCOUNT_SID", None, "The account. Unset, Twilio is not used.", rank="carrier"
    )
    auth_token: Secret | None = env(
        "TWILIO_AUTH_TOKEN", None, "The account's token, which also signs webhooks.", rank="carrier"
    )
    starts_per_s: Rate = env(
        "TWILIO_CALLS_PER_SECOND",
        "1",
        "Calls that the account may start per second: what Twilio allows it, or less.",
        rank="carrier",
    )


class PlivoSettings(Group):
    base_url: HttpUrl = env(
        "PLIVO_BASE_URL", "https://api.plivo.com", "Where Plivo's API is.", rank="carrier"
    )
    auth_id: Text | None = env(
        "PLIVO_AUTH_ID", None, "The account. Unset, Plivo is not used.", rank="carrier"
    )
    auth_token: Secret | None = env(
        "PLIVO_AUTH_TOKEN", None, "The account's token, which also signs webhooks.", rank="carrier"
    )
    starts_per_s: Rate = env(
        "PLIVO_CALLS_PER_SECOND",
        "2",
        "Calls that the account may start per second: what Plivo allows it, or less.",
        rank="carrier",
    )


class ExotelSettings(Group):
    base_url: HttpUrl = env(
        "EXOTEL_BASE_URL",
        "https://api.exotel.com",
        "Where Exotel's API is; for accounts in India https://api.in.exotel.com.",
        rank="carrier",
    )
    sid: Text | None = env("EXOTEL_SID", None, "The account. Unset, Exotel is not used.", rank="carrier")
    api_key: Text | None = env("EXOTEL_API_KEY", None, "The name that goes with the token.", rank="carrier")
    api_token: Secret | None = env("EXOTEL_API_TOKEN", None, "The account's token.", rank="carrier")
    app_id: Text | None = env(
        "EXOTEL_APP_ID",
        None,
        "The flow that answered calls run through. Without it nothing is dialled.",
        rank="carrier",
    )
    time_zone: Text = env(
        "EXOTEL_TIME_ZONE", "Asia/Kolkata", "The zone in which the account's times are told.", rank="carrier"
    )
    starts_per_s: Rate = env(
        "EXOTEL_CALLS_PER_SECOND",
        "3",
        "Calls that the account may start per second: what Exotel allows it, or less.",
        rank="carrier",
    )


class VapiSettings(Group):
    base_url: HttpUrl = env("VAPI_BASE_URL", "https://api.vapi.ai", "Where Vapi's API is.", rank="carrier")
    api_key: Secret | None = env(
        "VAPI_API_KEY", None, "The organisation's private key. Unset, Vapi is not used.", rank="carrier"
    )
    webhook_secret: Secret | None = env(
        "VAPI_WEBHOOK_SECRET",
        None,
        "What proves a message of Vapi's: sent with it, or its signature made with it.",
        rank="carrier",
    )
    assistant_id: Text | None = env(
        "VAPI_ASSISTANT_ID",
        None,
        "The assistant that talks, unless a lead names another. Needed to dial.",
        rank="carrier",
    )
    starts_per_s: Rate = env(
        "VAPI_CALLS_PER_SECOND",
        "10",
        "Calls that the account may start per second: what Vapi allows it, or less.",
        rank="carrier",
    )
