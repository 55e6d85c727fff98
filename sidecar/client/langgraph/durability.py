"""See that LangGraph writes each state before the next step begins."""

from langchain_core.runnables import RunnableConfig

# Private names, and on purpose imported: if LangGraph changes them, this fails at the import and not in silence.
from langgraph._internal._constants import CONFIG_KEY_DURABILITY, CONFIG_KEY_RUNTIME


def refuse_unordered(config: RunnableConfig) -> None:
    """See that a run writes each state, and so logs its `checkpoint`, before the next step can act.

    By default LangGraph writes a state while the next step runs, or (`exit`) at the end of the run. Then the guard is
    asked about an action before the log has the checkpoint that speaks against it.

    Args:
        config: what a checkpointer is called with. Where nothing is run (somebody looks at a state) all is well.

    Raises:
        ValueError: the run has another durability than `sync`.
    """
    configurable = config.get("configurable", {})
    if CONFIG_KEY_RUNTIME not in configurable:
        return
    durability = configurable.get(CONFIG_KEY_DURABILITY, "async")
    if durability != "sync":
        raise ValueError(
            f'the graph is run with durability="{durability}", so that a tool could act before the checkpoint that'
            ' speaks against it is in the log. Nothing was run. Give durability="sync" to invoke, ainvoke, stream or'
            " astream"
        )
