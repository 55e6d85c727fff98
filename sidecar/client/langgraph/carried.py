"""What a summary carries, as its own text says, and what an agent's state stands on after a compaction."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

import msgspec
from langchain.agents.middleware.types import AgentState, OmitFromSchema
from msgspec import Struct

from sidecar.protocol.records import Edge, Id, Level, Position

COMPACTION = "sidecar_compaction"
POSITIONS = "sidecar_positions"

_Private = OmitFromSchema(input=True, output=True)


class SidecarState(AgentState[Any]):
    """Add two channels to an agent's state; neither is input nor output, both are in every LangGraph checkpoint.

    `sidecar_compaction` is the `Compacted` that the state stands on, `sidecar_positions` the log position of each
    message in it.
    """

    sidecar_compaction: NotRequired[Annotated[dict[str, Any], _Private]]
    sidecar_positions: NotRequired[Annotated[dict[str, int], _Private]]


class Carried(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what a summary carries.

    Args:
        edges: which precondition authorizes which action; None: it does not say, so nobody can verify it.
        negative_constraints: the prohibitions.
        facts: the facts, each with the text that survives.
        referents: what its text depends on.
        dropped: what was left out on purpose; None: there is no manifest.
        verbatim_refs: the references that it holds word for word.
    """

    edges: tuple[Edge, ...] | None = None
    negative_constraints: tuple[Id, ...] = ()
    facts: dict[str, str] = {}
    referents: tuple[Id, ...] = ()
    dropped: tuple[Id, ...] | None = None
    verbatim_refs: tuple[Id, ...] = ()


class Compacted(Struct, frozen=True, kw_only=True):
    """Say what a state stands on: the newest summary in it, and what the state asserts.

    Args:
        node_id: the summary's node.
        generation: its generation.
        level: its level.
        frontier_lo: the first log position that the state covers.
        frontier_hi: the last one.
        asserted_edges: which precondition authorizes which action; None: not explicit.
        verbatim_refs: the references that the state holds word for word.
    """

    node_id: Id
    generation: Level
    level: Level
    frontier_lo: Position
    frontier_hi: Position
    asserted_edges: tuple[Edge, ...] | None = None
    verbatim_refs: tuple[Id, ...] = ()


def compacted(values: Mapping[str, Any]) -> Compacted | None:
    """Return what a state stands on, from the channel that `SidecarCompaction` keeps; None: nothing was summarized.

    Raises:
        ValueError: there is something else in the channel, so that nobody can tell.
    """
    held = values.get(COMPACTION)
    if held is None:
        return None
    try:
        return msgspec.convert(held, Compacted)
    except msgspec.ValidationError as error:
        raise ValueError(f"the channel {COMPACTION} of the state cannot be read: {error}") from None


_BLOCK = re.compile(r"<carried>(.*?)</carried>", re.DOTALL)

CARRY = """\
End with one block that names, by the ids given in the history, everything of the following that the history contains
and that still stands; leave out nothing and add nothing. `edges` pairs each action that is still allowed with what
allows it: never pair an action with what allowed another. The block is JSON, in exactly this form:

<carried>
{"edges": [["ACTION ID", "ID OF WHAT ALLOWS IT"]], "negative_constraints": ["ID OF A PROHIBITION"],
 "facts": {"FACT ID": "ITS WORDING"}, "referents": ["ID THE TEXT DEPENDS ON"],
 "verbatim_refs": ["REFERENCE HELD WORD FOR WORD"], "dropped": ["ID LEFT OUT ON PURPOSE"]}
</carried>"""
"""What the summarizer is told, so that `read_carried` finds what the summary carries."""


def read_carried(summary: str) -> Carried:
    """Return what a summary says it carries, in a block as `CARRY` asks for; without a readable one, nothing."""
    blocks = _BLOCK.findall(summary)
    if len(blocks) != 1:
        return Carried()
    try:
        return msgspec.json.decode(blocks[0], type=Carried)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Carried()
