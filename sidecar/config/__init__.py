"""One settings tree: defaults, then a YAML file, then the environment, then the command line."""

from sidecar.config.errors import SettingsError
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
    "EngineSettings",
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
