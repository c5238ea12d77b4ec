"""The root of the system: `platform` names every component and loop, `components` and `http_surface` build them."""

from trunkline.app.platform import Platform

__all__ = ["Platform"]
