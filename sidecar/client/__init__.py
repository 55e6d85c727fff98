"""What agents' code uses: write the log (`Emitter`), ask before acting (`Guard`), hear of halts (`HaltListener`).

Importing this package costs next to nothing: each name is loaded when it is first used, and a client library (Kafka,
HTTP, LangGraph) when a client of it is started.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidecar.client.emitter import Emitter
    from sidecar.client.errors import (
        Backlog,
        BrokerError,
        BrokerRefusal,
        ClientError,
        Closed,
        EmitterError,
        JournalBehind,
        JournalDamaged,
        JournalError,
        JournalInUse,
        JournalUnwritable,
        StandingUnknown,
        Unacknowledged,
    )
    from sidecar.client.guard import ActionUnlogged, Guard, GuardError, Refused, SyncGuard
    from sidecar.client.halts import OpenHalt
    from sidecar.client.listener import HaltListener
    from sidecar.client.sync import SyncEmitter, SyncHaltListener

__all__ = [
    "ActionUnlogged",
    "Backlog",
    "BrokerError",
    "BrokerRefusal",
    "ClientError",
    "Closed",
    "Emitter",
    "EmitterError",
    "Guard",
    "GuardError",
    "HaltListener",
    "JournalBehind",
    "JournalDamaged",
    "JournalError",
    "JournalInUse",
    "JournalUnwritable",
    "OpenHalt",
    "Refused",
    "StandingUnknown",
    "SyncEmitter",
    "SyncGuard",
    "SyncHaltListener",
    "Unacknowledged",
]

_MODULES = {
    "emitter": ("Emitter",),
    "errors": (
        "Backlog",
        "BrokerError",
        "BrokerRefusal",
        "ClientError",
        "Closed",
        "EmitterError",
        "JournalBehind",
        "JournalDamaged",
        "JournalError",
        "JournalInUse",
        "JournalUnwritable",
        "StandingUnknown",
        "Unacknowledged",
    ),
    "guard": ("ActionUnlogged", "Guard", "GuardError", "Refused", "SyncGuard"),
    "halts": ("OpenHalt",),
    "listener": ("HaltListener",),
    "sync": ("SyncEmitter", "SyncHaltListener"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
