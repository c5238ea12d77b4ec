"""Settings of calls: how they are placed, and through which carriers."""

from typing import ClassVar

from trunkline.settings.values import AnswerUrl, HttpUrl, Rate, Seconds, Secret, Switch, Text
from trunkline.settings.variables import Group, account_env, env, operator_env


class DispatchSettings(Group):
    """Pairing due leads with free channels."""

    grant_ttl_s: Seconds = env(
        "GRANT_TTL", "5s", "A grant that no attempt followed within this time goes back to the queue."
    )
    send_late_max_s: Seconds = env(
        "SEND_LATE_MAX",
        "0.5s",
        "A call that would be sent later than this is not sent, and its lead waits again.",
    )
    idle_wait_s: Seconds = env(
        "DIALER_IDLE_WAIT", "1s", "The longest time that a dialer sleeps before its next match."
    )
    ahead_s: Seconds = env(
        "DIAL_AHEAD",
        "100ms",
        "How long before its due time a call is committed, with its channel; the sender sends it on time. At "
        "most `100ms`.",
    )
    batch_max: int = env("DIALER_BATCH_SIZE", 16, "The maximum of grants in one match.", ge=1, le=1000)
    fallback_starts_per_s: int = env(
        "FALLBACK_CALLS_PER_SECOND",
        20,
        "The maximum of calls that all dialers together start per second while Valkey is away and Postgres alone "
        "finds channels. One of them queries Postgres; another takes over within seconds.",
        ge=1,
        le=100,
    )
    loader_jitter_max_s: Seconds = env(
        "LOADER_JITTER_MAX",
        "5s",
        "By how much the loader's scan, every five seconds, may be delayed once 100,000 leads wait.",
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
    machine_detection: Switch = operator_env(
        "MACHINE_DETECTION",
        "false",
        "Have the carrier detect whether a machine answered (Twilio, Plivo). It may cost extra.",
    )
    record_calls: Switch = operator_env(
        "RECORD_CALLS",
        "false",
        "Have the carrier record calls (Twilio, Exotel) and report the URLs. Whether the law allows that is the "
        "operator's responsibility.",
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
        "The message for such a call without ANSWER_FALLBACK_URL, or where the carrier cannot follow it.",
    )


class AccountSettings(Group):
    """An account of the environment is complete, or absent."""

    # The fields that belong together: the account, and what proves it.
    complete: ClassVar[tuple[str, ...]]

    def proof(self) -> tuple[list[str], list[str]]:
        """The variables of these fields that are unset, and those that are set."""
        unset: list[str] = []
        are_set: list[str] = []
        for name in self.complete:
            variable = str(type(self).model_fields[name].validation_alias)
            (unset if getattr(self, name) is None else are_set).append(variable)
        return unset, are_set


class TwilioSettings(AccountSettings):
    complete = ("account_sid", "auth_token")
    base_url: HttpUrl = account_env(
        "TWILIO_BASE_URL", "https://api.twilio.com", "The base URL of Twilio's API."
    )
    account_sid: Text | None = account_env(
        "TWILIO_ACCOUNT_SID", None, "The account. Unset, Twilio is not used."
    )
    auth_token: Secret | None = account_env(
        "TWILIO_AUTH_TOKEN", None, "The account's token, which also signs webhooks."
    )
    starts_per_s: Rate = account_env(
        "TWILIO_CALLS_PER_SECOND",
        "1",
        "Calls that the account may start per second: what Twilio allows it, or less.",
    )


class PlivoSettings(AccountSettings):
    complete = ("auth_id", "auth_token")
    base_url: HttpUrl = account_env("PLIVO_BASE_URL", "https://api.plivo.com", "The base URL of Plivo's API.")
    auth_id: Text | None = account_env("PLIVO_AUTH_ID", None, "The account. Unset, Plivo is not used.")
    auth_token: Secret | None = account_env(
        "PLIVO_AUTH_TOKEN", None, "The account's token, which also signs webhooks."
    )
    starts_per_s: Rate = account_env(
        "PLIVO_CALLS_PER_SECOND",
        "2",
        "Calls that the account may start per second: what Plivo allows it, or less.",
    )


class ExotelSettings(AccountSettings):
    complete = ("sid", "api_key", "api_token")
    base_url: HttpUrl = account_env(
        "EXOTEL_BASE_URL",
        "https://api.exotel.com",
        "The base URL of Exotel's API; for accounts in India https://api.in.exotel.com.",
    )
    sid: Text | None = account_env("EXOTEL_SID", None, "The account. Unset, Exotel is not used.")
    api_key: Text | None = account_env("EXOTEL_API_KEY", None, "The API key that belongs to the token.")
    api_token: Secret | None = account_env("EXOTEL_API_TOKEN", None, "The account's token.")
    app_id: Text | None = account_env(
        "EXOTEL_APP_ID", None, "The flow that answered calls run through. Without it nothing is dialled."
    )
    time_zone: Text = account_env(
        "EXOTEL_TIME_ZONE", "Asia/Kolkata", "The time zone of the times in the account's reports."
    )
    starts_per_s: Rate = account_env(
        "EXOTEL_CALLS_PER_SECOND",
        "3",
        "Calls that the account may start per second: what Exotel allows it, or less.",
    )


class VapiSettings(AccountSettings):
    complete = ("api_key", "webhook_secret")
    base_url: HttpUrl = account_env("VAPI_BASE_URL", "https://api.vapi.ai", "The base URL of Vapi's API.")
    api_key: Secret | None = account_env(
        "VAPI_API_KEY", None, "The organisation's private key. Unset, Vapi is not used."
    )
    webhook_secret: Secret | None = account_env(
        "VAPI_WEBHOOK_SECRET", None, "The secret of Vapi's messages, which they contain or are signed with."
    )
    assistant_id: Text | None = account_env(
        "VAPI_ASSISTANT_ID", None, "The assistant that talks, unless a lead names another. Needed to dial."
    )
    starts_per_s: Rate = account_env(
        "VAPI_CALLS_PER_SECOND",
        "10",
        "Calls that the account may start per second: what Vapi allows it, or less.",
    )
