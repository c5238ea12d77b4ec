"""What the API needs of jobs: outbox, notifier, the registry of types, the sealer of secrets, and files."""

from dataclasses import dataclass
from pathlib import Path

from trunkline.jobs.notifier import JobNotifier
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.platform.catalogue import job_files, known_types
from trunkline.jobs.platform.files import FileStore
from trunkline.jobs.registry import Registry
from trunkline.sealing import Sealer


@dataclass(frozen=True, slots=True)
class JobsApi:
    outbox: Outbox
    notifier: JobNotifier
    registry: Registry
    sealer: Sealer
    files: FileStore
    # For development: webhooks to plain HTTP and to private addresses.
    allow_insecure_webhooks: bool = False

    @classmethod
    def build(
        cls,
        notifier: JobNotifier,
        secrets: list[str],
        data_dir: Path,
        *,
        allow_insecure_webhooks: bool = False,
    ) -> "JobsApi":
        registry = known_types()
        return cls(
            outbox=Outbox(registry, notifier),
            notifier=notifier,
            registry=registry,
            sealer=Sealer.from_secrets(secrets),
            files=job_files(data_dir),
            allow_insecure_webhooks=allow_insecure_webhooks,
        )
