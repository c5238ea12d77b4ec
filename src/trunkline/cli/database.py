"""Commands on the database alone."""

from trunkline.embedded import Engines
from trunkline.settings import Settings
from trunkline.store import migrate


async def migrate_database(settings: Settings) -> list[str]:
    """Migrate the database that is configured, or the embedded one, started for the purpose."""
    url = settings.database.session_url
    if url:
        return await migrate.migrate(url)
    async with Engines(settings.data_dir) as engines:
        return await migrate.migrate(engines.database_url)
