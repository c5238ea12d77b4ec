"""Settings: read once from the environment, checked as a whole, frozen.

settings = load_settings()
settings.http.port
"""

from trunkline.settings.model import ROLES, Role, Row, Settings
from trunkline.settings.problems import Problem, SettingsError
from trunkline.settings.reading import load_settings

__all__ = ["ROLES", "Problem", "Role", "Row", "Settings", "SettingsError", "load_settings"]
