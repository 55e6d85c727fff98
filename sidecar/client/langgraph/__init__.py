"""Let a LangGraph or LangChain agent write the log and ask the guard (the extra `frontier-sidecar[langgraph]`).

`SidecarSaver` wraps a checkpointer, `SidecarMiddleware` stands around tools, `SidecarCompaction` around a summarizer.
"""

from sidecar.client.langgraph.carried import Carried, Compacted, compacted, read_carried
from sidecar.client.langgraph.compaction import SidecarCompaction, with_pins
from sidecar.client.langgraph.saver import Reconciled, SidecarSaver
from sidecar.client.langgraph.tools import SidecarMiddleware, handle_of

__all__ = [
    "Carried",
    "Compacted",
    "Reconciled",
    "SidecarCompaction",
    "SidecarMiddleware",
    "SidecarSaver",
    "compacted",
    "handle_of",
    "read_carried",
    "with_pins",
]
