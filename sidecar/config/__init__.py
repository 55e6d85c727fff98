"""One settings tree: defaults, then a YAML file, then the environment, then the command line."""

from sidecar.config.errors import SettingsError
from sidecar.config.fleet import AlertSettings, FleetSettings
from sidecar.config.guard import GuardSettings
from sidecar.config.kafka import KafkaSettings
from sidecar.config.sections import (
    EngineSettings,
    HealthSettings,
    HttpSettings,
    LogSettings,
    SessionSettings,
    SnapshotSettings,
    TailSettings,
    TopicSettings,
    WatchSettings,
    WorkloadSettings,
)
from sidecar.config.settings import Settings

__all__ = [
    "AlertSettings",
    "EngineSettings",
    "FleetSettings",
    "GuardSettings",
    "HealthSettings",
    "HttpSettings",
    "KafkaSettings",
    "LogSettings",
    "SessionSettings",
    "Settings",
    "SettingsError",
    "SnapshotSettings",
    "TailSettings",
    "TopicSettings",
    "WatchSettings",
    "WorkloadSettings",
]
