"""Settings: read once from the environment, checked as a whole, frozen.

settings = load_settings()
settings.http.port
"""

from trunkline.settings.model import ROLES, Role, SettingRow, Settings
from trunkline.settings.reading import SettingProblem, SettingsError, load_settings

__all__ = ["ROLES", "Role", "SettingProblem", "SettingRow", "Settings", "SettingsError", "load_settings"]
