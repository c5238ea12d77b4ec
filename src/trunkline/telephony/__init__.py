"""Carriers: one seam (`carrier`), one file per carrier, and a simulator that is a carrier on the wire."""
