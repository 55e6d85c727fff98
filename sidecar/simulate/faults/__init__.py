"""The faults that can be planted, each with exactly the findings that it must cause.

A fault is planted once, after some healthy life. Its incident goes wrong in one way, states what that must cause,
and returns a checkpoint that must not be resumed from on its account, if there is one.
"""

from sidecar.simulate.faults import frontier, midstream, recovery, summaries, transport
from sidecar.simulate.faults.kinds import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "frontier", "midstream", "recovery", "summaries", "transport"]
