"""A simulated fleet of agents, the same for the same seed, that says what is wrong with it."""

from sidecar.simulate.faults import FAULTS
from sidecar.simulate.fleet import EPOCH, Fleet, Message, Planted, mixed_records
from sidecar.simulate.log import Role
from sidecar.simulate.settings import DIRECT, FaultRates, Shape, Transport

__all__ = [
    "DIRECT",
    "EPOCH",
    "FAULTS",
    "FaultRates",
    "Fleet",
    "Message",
    "Planted",
    "Role",
    "Shape",
    "Transport",
    "mixed_records",
]
