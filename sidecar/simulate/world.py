"""What a simulated session keeps account of: its edges, facts, summaries and checkpoints."""

from msgspec import Struct

Edge = tuple[str, str]


class Fact(Struct):
    """Keep a declared fact: where, and what of it must survive."""

    seq: int
    anchor: str
    floor: int | None
    text: str


class Node(Struct):
    """Keep the newest generation of a summary."""

    node_id: str
    generation: int
    level: int
    lo: int
    hi: int
    children: tuple[str, ...]
    referents: list[str]
    constraints: list[str]
    facts: dict[str, str]
    dropped: list[str]


class Checkpoint(Struct):
    """Keep a checkpoint; `sound` is whether a resume from it is safe as far as it depends on the checkpoint."""

    checkpoint_id: str
    node: Node
    lo: int
    hi: int
    refs: list[str]
    sound: bool
