"""The clients: one method per operation of the API, asynchronous and synchronous.

No request is retried, with one exception: `create_lead` is idempotent by its `request_id`, so it is retried when there
was no response.
"""

from dataclasses import asdict, dataclass

from trunkline.client import campaigns, leads
from trunkline.client.decoding import decoded
from trunkline.client.operations import (
    AsyncCaller,
    Key,
    Operation,
    SyncCaller,
    calling,
    calling_list,
    changing,
    creating,
    deleting,
    downloading,
    getting,
    listing,
    path,
    posting,
    returning_items,
)
from trunkline.client.transport import Transport
from trunkline.schema.accounts import Account, AccountChange, AccountUrls, CarrierNumbers, NewAccount
from trunkline.schema.alarms import Alarm, AuditLine
from trunkline.schema.campaigns import Campaign, CampaignProgress
from trunkline.schema.controls import ControlState, StopInForce
from trunkline.schema.do_not_call import (
    DoNotCallEntriesAdded,
    DoNotCallEntry,
    NewDoNotCallEntries,
    NewDoNotCallEntry,
)
from trunkline.schema.flags import Flag, FlagEvaluation, FlagPreview
from trunkline.schema.inbound import InboundPolicy, NewInboundPolicy
from trunkline.schema.keys import ApiKey, CreatedKey, Me, NewKey
from trunkline.schema.leads import Lead, LeadWithAttempts, Why
from trunkline.schema.mailbox_kinds import MailboxKind, MailboxKindWithSecret, NewMailboxKind
from trunkline.schema.numbers import (
    FreedChannels,
    NewNumber,
    NewPool,
    Number,
    NumberChange,
    NumberChannels,
    Pool,
    PoolChange,
)
from trunkline.schema.overview import Overview
from trunkline.schema.policy import PolicyLayer, RulePack, RulePacks
from trunkline.schema.probes import Health, Readiness
from trunkline.schema.queues import (
    EventReceipt,
    Job,
    JobDetail,
    JobProgress,
    JobRequest,
    JobSchedule,
    JobTypeState,
    MailboxDetail,
    MailboxesRenamed,
    MailboxesReplayed,
    MailboxEvent,
    MailboxState,
    MailboxSummary,
    NewExport,
    QueueCounts,
    QueueItem,
    QueueReplayed,
)
from trunkline.schema.reminders import Occurrence, Reminder
from trunkline.schema.tenants import (
    Merchant,
    MerchantChange,
    NewMerchant,
    NewReseller,
    Reseller,
    ResellerChange,
)
from trunkline.schema.webhook_endpoints import (
    NewWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointChange,
    WebhookEndpointWithSecret,
)


async def _put_inbound(api: Transport, number_id: Key, policy: NewInboundPolicy) -> InboundPolicy:
    """Replaces the policy."""
    return decoded(InboundPolicy, await api.put(path("numbers", number_id, "inbound"), asdict(policy)))


async def _get_queue_item(
    api: Transport, queue_kind: str, queue_name: str, queue_item: Key
) -> JobDetail | MailboxDetail:
    place = calling("GET", "queues/{queue_kind}/{queue_name}/{queue_item}")
    found = await place.call(api, queue_kind, queue_name, queue_item)
    return decoded(JobDetail, found) if queue_kind == "jobs" else decoded(MailboxDetail, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _All:
    """A list without filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MerchantFilter:
    reseller_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberFilter:
    pool: str | None = None
    e164: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AccountFilter:
    carrier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhoneFilter:
    phone: str | None = None


class _Operations:
    create_lead = Operation(leads.create_lead)
    create_leads = Operation(leads.create_leads)
    upload_leads = Operation(leads.upload_leads)
    get_lead = getting(LeadWithAttempts, "leads")
    list_leads = listing(Lead, "leads", leads.LeadSelection)
    update_lead = Operation(leads.update_lead)
    why = getting(Why, "leads", "why")
    dispatch_now = posting(Lead, "leads", "dispatch-now")
    abort_lead = Operation(leads.abort_lead)
    abort_leads = Operation(leads.abort_leads)
    reopen_lead = Operation(leads.reopen_lead)
    reopen_leads = Operation(leads.reopen_leads)
    abort_request = calling("DELETE", "leads")
    list_enrichments = calling("GET", "attempts/{attempt_id}/enrichments")
    get_recording = downloading("attempts/{attempt_id}/enrichments/{item_id}/recording")

    create_campaign = creating(campaigns.CampaignArguments, Campaign, "campaigns")
    get_campaign = getting(Campaign, "campaigns")
    list_campaigns = listing(Campaign, "campaigns", campaigns.CampaignSelection)
    update_campaign = calling("PATCH", "campaigns/{campaign_id}")
    plan_campaign = Operation(campaigns.plan_campaign)
    get_campaign_results = downloading("campaigns/{campaign_id}/results")
    upload_campaign = Operation(campaigns.upload_campaign)
    start_campaign = Operation(campaigns.start_campaign)
    pause_campaign = Operation(campaigns.pause_campaign)
    resume_campaign = Operation(campaigns.resume_campaign)
    stop_campaign = Operation(campaigns.stop_campaign)
    campaign_progress = getting(CampaignProgress, "campaigns", "progress")

    create_reminder = Operation(campaigns.create_reminder)
    get_reminder = getting(Reminder, "reminders")
    list_reminders = listing(Reminder, "reminders", campaigns.ReminderSelection)
    update_reminder = calling("PATCH", "reminders/{reminder_id}")
    get_upcoming = calling("GET", "reminders/{reminder_id}/upcoming")
    list_occurrences = calling_list("reminders/{reminder_id}/occurrences", Occurrence)
    ring_next = posting(Reminder, "reminders", "next")
    pause_reminder = posting(Reminder, "reminders", "pause")
    resume_reminder = posting(Reminder, "reminders", "resume")
    skip_occurrence = Operation(campaigns.skip_occurrence)
    cancel_reminder = Operation(campaigns.cancel_reminder)

    create_reseller = creating(NewReseller, Reseller, "resellers")
    get_reseller = getting(Reseller, "resellers")
    list_resellers = listing(Reseller, "resellers", _All)
    update_reseller = changing(ResellerChange, Reseller, "resellers")
    delete_reseller = deleting("resellers")

    create_merchant = creating(NewMerchant, Merchant, "merchants")
    get_merchant = getting(Merchant, "merchants")
    list_merchants = listing(Merchant, "merchants", _MerchantFilter)
    update_merchant = changing(MerchantChange, Merchant, "merchants")
    delete_merchant = deleting("merchants")

    create_pool = creating(NewPool, Pool, "pools")
    get_pool = getting(Pool, "pools")
    list_pools = listing(Pool, "pools", _All)
    update_pool = changing(PoolChange, Pool, "pools")
    delete_pool = deleting("pools")

    create_number = creating(NewNumber, Number, "numbers")
    get_number = getting(Number, "numbers")
    list_numbers = listing(Number, "numbers", _NumberFilter)
    update_number = changing(NumberChange, Number, "numbers")
    delete_number = calling("DELETE", "numbers/{number_id}", Number)

    list_channels = calling("GET", "numbers/{number_id}/channels", NumberChannels)
    free_channels = calling("POST", "channels/free", FreedChannels)
    get_inbound = getting(InboundPolicy, "numbers", "inbound")
    put_inbound = Operation(_put_inbound)
    delete_inbound = calling("DELETE", "numbers/{number_id}/inbound")

    create_account = creating(NewAccount, Account, "accounts")
    get_account = getting(Account, "accounts")
    get_account_urls = getting(AccountUrls, "accounts", "urls")
    list_accounts = listing(Account, "accounts", _AccountFilter)
    update_account = changing(AccountChange, Account, "accounts")
    delete_account = deleting("accounts")
    ask_for_numbers = calling("POST", "accounts/numbers", CarrierNumbers)

    create_key = creating(NewKey, CreatedKey, "keys")
    get_key = getting(ApiKey, "keys")
    list_keys = listing(ApiKey, "keys", _All)
    revoke_key = calling("DELETE", "keys/{key_id}", ApiKey)

    add_do_not_call_entry = creating(NewDoNotCallEntry, DoNotCallEntry, "do-not-call")
    add_do_not_call_entries = creating(NewDoNotCallEntries, DoNotCallEntriesAdded, "do-not-call/bulk")
    get_do_not_call_entry = getting(DoNotCallEntry, "do-not-call")
    list_do_not_call_entries = listing(DoNotCallEntry, "do-not-call", _PhoneFilter)
    remove_do_not_call_entry = deleting("do-not-call")

    create_webhook_endpoint = creating(NewWebhookEndpoint, WebhookEndpointWithSecret, "webhook-endpoints")
    get_webhook_endpoint = getting(WebhookEndpoint, "webhook-endpoints")
    list_webhook_endpoints = listing(WebhookEndpoint, "webhook-endpoints", _All)
    update_webhook_endpoint = changing(WebhookEndpointChange, WebhookEndpoint, "webhook-endpoints")
    rotate_webhook_secret = posting(WebhookEndpointWithSecret, "webhook-endpoints", "rotate-secret")
    delete_webhook_endpoint = deleting("webhook-endpoints")

    create_mailbox_kind = creating(NewMailboxKind, MailboxKindWithSecret, "mailbox-kinds")
    list_mailbox_kinds = listing(MailboxKind, "mailbox-kinds", _All)
    rotate_mailbox_secret = posting(MailboxKindWithSecret, "mailbox-kinds", "rotate-secret")
    delete_mailbox_kind = deleting("mailbox-kinds")

    list_controls = calling_list("controls", StopInForce)
    get_kill_switch = calling("GET", "controls/kill-switch", ControlState)
    set_kill_switch = calling("PUT", "controls/kill-switch", ControlState)
    lift_kill_switch = calling("DELETE", "controls/kill-switch", ControlState)
    get_promoter = calling("GET", "controls/promoter", ControlState)
    set_promoter = calling("PUT", "controls/promoter", ControlState)
    lift_promoter = calling("DELETE", "controls/promoter", ControlState)
    get_control = calling("GET", "controls/{scope}/{subject}", ControlState)
    set_control = calling("PUT", "controls/{scope}/{subject}", ControlState)
    lift_control = calling("DELETE", "controls/{scope}/{subject}", ControlState)

    list_flags = calling_list("flags", Flag)
    evaluate_flag = calling("GET", "flags/{flag}/evaluation", FlagEvaluation)
    preview_flag = calling("POST", "flags/{flag}/preview", FlagPreview)
    set_flag = calling("PUT", "flags/{flag}", Flag)
    delete_flag = calling("DELETE", "flags/{flag}", Flag)

    list_packs = calling("GET", "policy/packs", RulePacks)
    put_pack = calling("PUT", "policy/packs/{pack_name}", RulePack)
    delete_pack = calling("DELETE", "policy/packs/{pack_name}")
    get_platform_policy = calling("GET", "policy", PolicyLayer)
    put_platform_policy = calling("PUT", "policy", PolicyLayer)
    get_reseller_policy = calling("GET", "resellers/{reseller_id}/policy", PolicyLayer)
    put_reseller_policy = calling("PUT", "resellers/{reseller_id}/policy", PolicyLayer)
    get_merchant_policy = calling("GET", "merchants/{merchant_id}/policy", PolicyLayer)
    put_merchant_policy = calling("PUT", "merchants/{merchant_id}/policy", PolicyLayer)
    delete_merchant_policy = calling("DELETE", "merchants/{merchant_id}/policy")
    get_campaign_policy = calling(
        "GET", "merchants/{merchant_id}/campaigns/{campaign_id}/policy", PolicyLayer
    )
    put_campaign_policy = calling(
        "PUT", "merchants/{merchant_id}/campaigns/{campaign_id}/policy", PolicyLayer
    )

    list_queues = returning_items(QueueCounts, calling("GET", "queues"))
    list_queue_items = calling_list("queues/{queue_kind}/{queue_name}", QueueItem)
    get_queue_item = Operation(_get_queue_item)
    replay_queue = calling("POST", "queues/{queue_kind}/{queue_name}/replay", QueueReplayed)
    replay_queue_item = calling("POST", "queues/{queue_kind}/{queue_name}/{queue_item}/replay", QueueItem)
    pause_queue = calling("POST", "queues/jobs/{queue_name}/pause", QueueCounts)
    resume_queue = calling("POST", "queues/jobs/{queue_name}/resume", QueueCounts)
    cancel_queue_item = calling("POST", "queues/jobs/{queue_name}/{job_id}/cancel", QueueItem)

    list_jobs = calling_list("jobs", Job)
    enqueue_job = creating(JobRequest, Job, "jobs")
    list_dead = calling_list("jobs/dead", Job)
    replay_dead = calling("POST", "jobs/dead/replay", QueueReplayed)
    list_types = returning_items(JobTypeState, calling("GET", "jobs/types"))
    pause_type = calling("POST", "jobs/types/{job_type}/pause", JobTypeState)
    resume_type = calling("POST", "jobs/types/{job_type}/resume", JobTypeState)
    list_schedules = returning_items(JobSchedule, calling("GET", "jobs/schedules"))
    create_export = creating(NewExport, Job, "jobs/exports")
    get_job = getting(JobDetail, "jobs")
    get_progress = getting(JobProgress, "jobs", "progress")
    get_file = downloading("jobs/{job_id}/file")
    retry_job = posting(Job, "jobs", "retry")
    cancel_job = calling("POST", "jobs/{job_id}/cancel", Job)

    summarize = returning_items(MailboxSummary, calling("GET", "mailboxes"))
    list_stuck = returning_items(MailboxState, calling("GET", "mailboxes/stuck"))
    list_mailboxes = calling_list("mailboxes/{kind}", MailboxState)
    get_mailbox = calling("GET", "mailboxes/{kind}/{key}", MailboxDetail)
    list_events = calling_list("mailboxes/{kind}/{key}/events", MailboxEvent)
    append_event = calling("POST", "mailboxes/{kind}/{key}/events", EventReceipt)
    replay_kind = calling("POST", "mailboxes/{kind}/replay", MailboxesReplayed)
    rename_kind = calling("POST", "mailboxes/{kind}/rename", MailboxesRenamed)
    replay_mailbox = calling("POST", "mailboxes/{kind}/{key}/replay", MailboxState)
    set_aside = calling("POST", "mailboxes/{kind}/{key}/set-aside", MailboxState)

    list_alarms = calling_list("alarms", Alarm)
    clear_alarm = calling("POST", "alarms/{alarm_id}/clear", Alarm)
    list_audit = calling_list("audit", AuditLine)
    get_overview = calling("GET", "overview", Overview)

    me = calling("GET", "me", Me)
    health = calling("GET", "/health", Health)
    ready = calling("GET", "/ready", Readiness)
    metrics = downloading("/metrics")


class TrunklineClient(AsyncCaller, _Operations):
    """Use it as `async with`, or call `close` at the end."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        super().__init__(Transport(base_url, api_key, timeout_s))

    async def __aenter__(self) -> "TrunklineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SyncTrunklineClient(SyncCaller, _Operations):
    """The same methods without `await`. Use it as `with`, or call `close` at the end. Thread-safe."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        super().__init__(Transport(base_url, api_key, timeout_s))

    def __enter__(self) -> "SyncTrunklineClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
