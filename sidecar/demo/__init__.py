"""The demo: a simulated fleet with known faults, the tail on it, and a table of what was planted and flagged."""

from sidecar.demo.play import demo

__all__ = ["demo"]
