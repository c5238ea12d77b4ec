"""What follows a call is enqueued with the fact that caused it, and run by the role `jobs`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trunkline.control.webhook import ANNOUNCE_ALARM, AlarmAnnouncer, AlarmDelivery
from trunkline.jobs.application import load_enricher, load_modules
from trunkline.jobs.face import JobFace
from trunkline.jobs.platform.catalogue import PlatformParts, job_files, platform_registry
from trunkline.jobs.platform.enrichment import CallSource, EnrichmentDesk
from trunkline.jobs.platform.outgoing import Outgoing
from trunkline.jobs.platform.retention import FileRetention
from trunkline.jobs.poker import Poker
from trunkline.jobs.recurring import declared_schedules
from trunkline.jobs.registry import Registry
from trunkline.jobs.service import JobConfig, JobService
from trunkline.loops.alarms import Announce
from trunkline.loops.base import Loop
from trunkline.parts.ground import Ground
from trunkline.parts.way_in import WayIn
from trunkline.telephony.carriers import CarrierConfigError


class Following:
    def __init__(self, ground: Ground, way_in: WayIn):
        self._ground = ground
        self._carriers = way_in.carriers
        jobs = ground.settings.jobs
        self.poker = Poker(ground.settings.database.session_url if jobs.notify else None)
        load_modules(jobs.modules)
        self.face = JobFace.build(
            self.poker,
            ground.secrets,
            ground.settings.data_dir,
            allow_insecure_webhooks=jobs.allow_insecure_webhooks,
        )
        self.face.registry.add(ANNOUNCE_ALARM)
        self.enrichment = EnrichmentDesk(self.face.outbox) if jobs.enricher else None
        self.loops: list[Loop] = [
            FileRetention(
                ground.database, self.face.files, exports_s=jobs.history_s, enrichments_s=jobs.enrichment_s
            )
        ]

    @property
    def announce(self) -> Announce | None:
        """Tells operators of alarms, if they said where."""
        is_wanted = self._ground.settings.control.alarm_webhook_url
        return AlarmAnnouncer(self.face.outbox).announce if is_wanted else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With the role `jobs`, the service that runs them, on connections of its own."""
        settings = self._ground.settings
        if "jobs" not in settings.roles:
            yield
            return
        assert settings.database.url, "connected"
        tenants = Outgoing(allow_insecure=settings.jobs.allow_insecure_webhooks)
        operators = Outgoing(allow_insecure=True)
        async with JobService.open(
            JobConfig.of(settings),
            self._registry(tenants, operators),
            settings.database.url,
            direct_url=settings.database.direct_url,
            behind_pooler=settings.database.pooler == "transaction",
            recurring=declared_schedules,
            poker=self.poker,
        ):
            yield
        await tenants.close()
        await operators.close()

    def _authorization(self, source: CallSource, url: str) -> str | None:
        """The account that a call was made with opens its recording, at its carrier's own hosts."""
        if source.carrier is None or source.account is None:
            return None
        try:
            return self._carriers.get(source.carrier, source.account).media_authorization(url)
        except CarrierConfigError:
            return None

    def _registry(self, tenants: Outgoing, operators: Outgoing) -> Registry:
        settings = self._ground.settings
        registry = platform_registry(
            PlatformParts(
                self._ground.database,
                self.face.sealer,
                tenants,
                self._ground.clock,
                job_files(settings.data_dir),
                self.face.outbox,
                load_enricher(settings.jobs.enricher),
                self._authorization,
            )
        )
        alarm_url = settings.control.alarm_webhook_url
        delivery = AlarmDelivery(alarm_url.get_secret_value() if alarm_url else None, operators)
        registry.add(ANNOUNCE_ALARM, delivery.run)
        return registry
