"""Summaries of a real LangChain agent: proposed, judged, made again with pins, written down, or not made."""

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents.middleware import SummarizationMiddleware
from langchain.agents.middleware.summarization import DEFAULT_SUMMARY_PROMPT
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver

from sidecar.client.guard import Guard, Refused, SyncGuard
from sidecar.client.langgraph import Carried, SidecarCompaction, SidecarSaver, read_carried, with_pins
from sidecar.protocol.records import Retention
from tests.client.agents import agent, says, summarizing, summary, thread
from tests.client.guards import FakeGuard, refuse
from tests.client.judge import Judge, judging
from tests.client.memory import AsyncMemoryLog, MemoryLog, kinds

EDGES = [["deploy-prod", "ticket"]]


@pytest.fixture
def log() -> MemoryLog:
    """Give a log."""
    return MemoryLog()


@pytest.fixture
def judged(log: MemoryLog) -> Iterator[tuple[Judge, FakeGuard]]:
    """Give a guard that judges that log."""
    with judging(log) as both:
        yield both


@pytest.fixture
def guard(judged: tuple[Judge, FakeGuard]) -> Iterator[SyncGuard]:
    """Ask it."""
    with SyncGuard(judged[1].url) as client:
        yield client


class Talk:
    """Talk with an agent that compacts; what it answers is of no importance."""

    def __init__(self, guard: Any, log: Any, *summaries: str, summarizer: Any = None, **options: Any) -> None:
        self.summarizer = summarizer or summarizing(*summaries)
        compaction = SidecarCompaction(self.summarizer, guard, log, **options)
        self.model = says(*["…"] * 20)
        self.saver = SidecarSaver(InMemorySaver(), guard, log)
        self.graph = agent(self.model, compaction, saver=self.saver)

    def say(self, text: str) -> list[Any]:
        """Say something; return the messages of the state."""
        return list(self.graph.invoke({"messages": [HumanMessage(text)]}, thread(), durability="sync")["messages"])

    async def asay(self, text: str) -> list[Any]:
        """Say something, with await."""
        return list(
            (await self.graph.ainvoke({"messages": [HumanMessage(text)]}, thread(), durability="sync"))["messages"]
        )

    @property
    def told(self) -> list[str]:
        """Return what the summarizer was told each time."""
        return [str(messages[0].content) for messages in self.summarizer.model.heard]


def test_a_good_summary_is_committed_and_written_down(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    talk = Talk(guard, log, summary(edges=EDGES, verbatim_refs=["vm-1"]))
    log.authorization("deploy-prod", "ticket")
    talk.say("Ticket allows deploy-prod.")  # 2: this, 3: the answer
    log.authorization("deploy-test", "word")  # 4
    talk.say("And deploy-test.")
    messages = talk.say("Go on.")
    events = ["authorization", "opaque", "opaque", "authorization", "opaque", "opaque", "opaque"]
    assert kinds(log.decoded())[:8] == [*events, "summary"]
    assert sorted(kinds(log.decoded())[8:]) == ["checkpoint", "opaque"]  # LangGraph writes in the background
    (made,) = log.of("summary")
    assert (made.node_id, made.generation, made.level, made.children) == ("compaction-7", 1, 1, None)
    assert (made.frontier_lo, made.frontier_hi) == (1, 6)
    assert made.input_tokens == made.input_tokens_read > 0
    assert made.tokens_emitted > 0
    (written,) = log.of("checkpoint")
    assert (written.node_id, written.summary_generation, written.level) == ("compaction-7", 1, 1)
    assert (written.frontier_lo, written.frontier_hi) == (1, 6)
    assert written.asserted_edges == (("deploy-prod", "ticket"),)
    assert written.verbatim_refs == ("vm-1",)
    assert messages[0].additional_kwargs == {"lc_source": "summarization"}
    assert messages[0].id == "compaction-7"
    assert [message.content for message in messages[1:]] == ["Go on.", "…"]
    # The second edge was in what was summarized, and the summary does not have it.
    assert judged[0].found() == [("edge_dropped", written.checkpoint_id)]


def test_what_is_kept_is_not_in_the_summarys_range(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    talk = Talk(guard, log, summarizer=summarizing(summary(edges=EDGES), at=5))
    log.authorization("deploy-prod", "ticket")  # 1
    talk.say("Ticket allows deploy-prod.")  # 2: this, 3: the answer
    talk.say("Hello.")  # 4, 5
    log.authorization("deploy-test", "word")  # 6
    talk.say("And deploy-test.")  # 7
    (written,) = log.of("checkpoint")
    assert (written.frontier_lo, written.frontier_hi) == (1, 5)
    assert judged[0].found() == [("stale_on_authorization", written.checkpoint_id)]


def test_the_next_compaction_stands_on_the_one_before(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    both = summary(edges=[*EDGES, ["deploy-test", "word"]])
    talk = Talk(guard, log, summary(edges=EDGES), summary(edges=EDGES), both)
    log.authorization("deploy-prod", "ticket")
    for text in ("Ticket allows deploy-prod.", "Hello.", "Go on."):
        talk.say(text)
    log.authorization("deploy-test", "word")
    for text in ("Word allows deploy-test.", "Go on."):
        talk.say(text)
    first, second, third = log.of("summary")
    assert [made.level for made in (first, second, third)] == [1, 2, 3]
    assert [made.children for made in (first, second, third)] == [None, (first.node_id,), (second.node_id,)]
    assert [made.frontier_lo for made in (first, second, third)] == [1, 1, 1]
    assert first.frontier_hi < second.frontier_hi < third.frontier_hi < third.seq
    written = log.of("checkpoint")
    stale = [("stale_on_authorization", checkpoint.checkpoint_id) for checkpoint in written[:2]]
    assert judged[0].found() == stale
    assert judged[0].status("s") == "verified"


def test_a_lost_prohibition_is_pinned_and_the_summary_made_again(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    talk = Talk(guard, log, summary(edges=[]), summary(edges=[], negative_constraints=["no-{friday}"]))
    log.constraint("no-{friday}", polarity="negative", text="Never deploy on Fridays.")
    for text in ("Never deploy on Fridays (no-{friday}).", "Hello.", "Go on."):
        talk.say(text)
    assert len(log.of("summary")) == 1
    assert log.of("summary")[0].negative_constraints == ("no-{friday}",)
    first, second = talk.told
    assert "no-{friday}" in first  # in the history
    assert "- the prohibition no-{friday}\n" in second
    assert "- the prohibition" not in first
    for told in (first, second):
        assert '{"edges": [["ACTION ID"' in told
        assert told.index("<carried>") < told.index("<messages>\nMessages to summarize:")
    assert "- the prohibition no-{friday}\n" in log.of("summary")[0].instruction
    assert judged[0].found() == []


def test_a_lost_fact_is_pinned_word_for_word(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    facts = {"port": "the database listens on 5432 only"}
    talk = Talk(guard, log, summary(edges=[], facts={"port": "some port"}), summary(edges=[], facts=facts))
    log.fact("port", "5432", floor_tokens=4)
    for text in ("The database (fact port) listens on 5432 only.", "Hello.", "Go on."):
        talk.say(text)
    assert "- the fact port, with '5432' word for word, in at least 4 words" in talk.told[1]
    assert log.of("summary")[0].facts == facts
    assert judged[0].found() == []


def test_a_summary_that_does_not_become_better_is_refused(guard: SyncGuard, log: MemoryLog) -> None:
    talk = Talk(guard, log, *[summary(edges=[])] * 3, attempts=2)
    log.constraint("no-friday", polarity="negative")
    talk.say("Never deploy on Fridays (no-friday).")
    talk.say("Hello.")
    with pytest.raises(Refused) as caught:
        talk.say("Go on.")
    assert caught.value.what == "the summary compaction-6"
    assert "constraint_dropped" in str(caught.value)
    assert "pin: constraint no-friday" in str(caught.value)
    assert len(talk.told) == 2
    assert log.of("summary", "checkpoint") == []


def test_or_the_messages_are_kept_as_they_are(guard: SyncGuard, log: MemoryLog) -> None:
    talk = Talk(guard, log, *[summary(edges=[])] * 9, attempts=1, on_refusal="keep")
    log.constraint("no-friday", polarity="negative")
    for text in ("Never deploy on Fridays (no-friday).", "Hello.", "Go on.", "And on."):
        messages = talk.say(text)
    assert len(messages) == 8
    assert log.of("summary", "checkpoint") == []
    positions = talk.graph.get_state(thread()).values["sidecar_positions"]
    assert list(positions.values()) == list(range(2, 10))


def test_without_a_guard_nothing_is_compacted(log: MemoryLog) -> None:
    with SyncGuard("http://127.0.0.1:9") as guard:
        talk = Talk(guard, log, *[summary(edges=[])] * 3)
        talk.say("Hello.")
        talk.say("Hello again.")
        with pytest.raises(Refused, match="unavailable"):
            talk.say("Go on.")
    assert len(talk.told) == 1
    assert log.of("summary", "checkpoint") == []


def test_a_flat_tree_stays_flat(guard: SyncGuard, log: MemoryLog) -> None:
    retention = Retention(per_node_recall=0.5, source="probe", depth=3, flatten_available=True)
    talk = Talk(guard, log, *[summary(edges=[])] * 3, retention=retention)
    for text in ("Hello.", "Hello again.", "Go on."):
        messages = talk.say(text)
    assert len(messages) == 6
    assert log.of("summary") == []


def test_what_the_summarizer_trims_away_it_has_not_read(guard: SyncGuard, log: MemoryLog) -> None:
    summarizer = summarizing(*[summary(edges=[])] * 3, trim_tokens_to_summarize=20)
    talk = Talk(guard, log, summarizer=summarizer)
    talk.say("Long ago. " * 50)
    talk.say("Hello.")
    with pytest.raises(Refused, match="budget_open"):
        talk.say("Go on.")


def test_a_budget_is_held(guard: SyncGuard, log: MemoryLog) -> None:
    talk = Talk(guard, log, *[summary("Long. " * 100, edges=[]), summary("Short.", edges=[])], token_budget=60)
    for text in ("Hello.", "Hello again.", "Go on."):
        talk.say(text)
    assert len(talk.told) == 2
    assert log.of("summary")[0].tokens_emitted <= 60


def test_what_a_summary_does_not_say_cannot_be_verified(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    talk = Talk(guard, log, "All is well; ticket allows deploy-prod.")
    log.authorization("deploy-prod", "ticket")
    for text in ("Ticket allows deploy-prod.", "Hello.", "Go on."):
        talk.say(text)
    (written,) = log.of("checkpoint")
    assert written.asserted_edges is None
    assert judged[0].found() == [("frontier_unverified", written.checkpoint_id)]


def test_what_a_summary_carries_may_be_read_otherwise(guard: SyncGuard, log: MemoryLog) -> None:
    def read(text: str) -> Carried:
        assert text.startswith("Here is a summary of the conversation to date:")
        return Carried(edges=(("a", "b"),))

    talk = Talk(guard, log, "A from B.", read=read)
    for text in ("Hello.", "Hello again.", "Go on."):
        talk.say(text)
    assert log.of("checkpoint")[0].asserted_edges == (("a", "b"),)
    assert "<carried>" not in talk.told[0]


def test_a_summarizer_that_is_a_function_is_told_too(guard: SyncGuard, log: MemoryLog) -> None:
    heard: list[list[Any]] = []

    def summarize(messages: list[Any]) -> str:
        heard.append(messages)
        return summary(edges=[], negative_constraints=["no-friday"] if len(heard) > 1 else [])

    middleware = SummarizationMiddleware(
        says(), trigger=("messages", 4), keep=("messages", 1), trim_tokens_to_summarize=None, summarizer=summarize
    )
    talk = Talk(guard, log, summarizer=middleware)
    log.constraint("no-friday", polarity="negative")
    for text in ("Never deploy on Fridays (no-friday).", "Hello.", "Go on."):
        talk.say(text)
    assert [len(messages) for messages in heard] == [5, 6]
    assert all(isinstance(messages[0], SystemMessage) for messages in heard)
    assert "- the prohibition no-friday" in heard[1][1].content
    assert log.of("summary")[0].instruction is None


async def test_with_await(judged: tuple[Judge, FakeGuard]) -> None:
    log = AsyncMemoryLog("async")
    judged[0].logs["async"] = log
    async with Guard(judged[1].url) as guard:
        talk = Talk(guard, log, summary(), summary(edges=EDGES, negative_constraints=["no-friday"]))
        log.constraint("no-friday", polarity="negative").close()  # a coroutine: this one is not logged
        await log.constraint("no-friday", polarity="negative")
        await log.authorization("deploy-prod", "ticket")
        for text in ("Never on Fridays (no-friday), deploy-prod by ticket.", "Hello.", "Go on."):
            await talk.asay(text)
    assert len(talk.told) == 2
    assert log.of("checkpoint")[0].asserted_edges == (("deploy-prod", "ticket"),)
    assert judged[0].found() == []


def test_a_summarizer_that_does_something_else_is_an_error(guard: SyncGuard, log: MemoryLog) -> None:
    class Odd(AgentMiddleware[Any, Any]):
        summary_prompt = "Summarize."
        messages: list[Any] = []  # noqa: RUF012

        def before_model(self, state: Any, runtime: Any) -> Any:
            return {"messages": self.messages}

    all_gone = RemoveMessage(id="__remove_all__")
    made = HumanMessage("so far", additional_kwargs={"lc_source": "summarization"})
    for messages in ([], [made], [all_gone], [all_gone, made, made.model_copy()], [RemoveMessage(id="1"), made]):
        odd = Odd()
        odd.messages = messages
        with pytest.raises(ValueError, match=r"did not replace|summaries where one"):
            Talk(guard, log, summarizer=odd).say("Hello.")
    with pytest.raises(TypeError, match="cannot be told"):
        SidecarCompaction(AgentMiddleware(), guard, log)
    for wrong in ({"attempts": 0}, {"on_refusal": "shrug"}):
        with pytest.raises(ValueError, match=r"at least once|raise or keep"):
            SidecarCompaction(summarizing(), guard, log, **wrong)
    with SyncGuard("http://127.0.0.1:9") as sync, pytest.raises(TypeError, match="needs await"):
        Talk(sync, AsyncMemoryLog(), summary()).say("Hello.")


async def test_a_refusal_without_a_decision_to_retry_is_not_retried() -> None:
    halted = FakeGuard(lambda request, asked: refuse("rule", "stop", rule="unreconciled_recompaction"))
    log = AsyncMemoryLog()
    async with halted.serving() as fake, Guard(fake.url) as guard:
        graph = agent(says(*["…"] * 9), SidecarCompaction(summarizing(*[summary()] * 5), guard, log))
        messages = [HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d"), HumanMessage("e")]
        with pytest.raises(Refused, match="unreconciled_recompaction"):
            await graph.ainvoke({"messages": messages}, thread())
    assert fake.paths == ["/v1/commit"]


def test_the_default_prompt_is_told_before_the_history() -> None:
    told = with_pins(summarizing(), "Keep {this}.")
    prompt = told.summary_prompt.format(messages="HISTORY")
    assert prompt.index("Keep {this}.") < prompt.index("<messages>") < prompt.index("HISTORY")
    assert told.summary_prompt != DEFAULT_SUMMARY_PROMPT == summarizing().summary_prompt
    plain = with_pins(summarizing(summary_prompt="Sum up {messages}"), "Keep {this}.")
    assert plain.summary_prompt.format(messages="HISTORY") == "Keep {this}.\n\nSum up HISTORY"


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("nothing", Carried()),
        ("", Carried()),
        ("<carried></carried>", Carried()),
        ("<carried>{}</carried>", Carried()),
        ("<carried>[]</carried>", Carried()),
        ("<carried>{</carried>", Carried()),
        ('<carried>{"edges": []}</carried>', Carried(edges=())),
        ('<carried>{"edges": [["a", "b"]]}</carried>', Carried(edges=(("a", "b"),))),
        ('<carried>{"edges": [["a"]]}</carried>', Carried()),
        ('<carried>{"edges": [["a", ""]]}</carried>', Carried()),
        ('<carried>{"edges": [], "more": 1}</carried>', Carried()),
        ('<carried>{"edges": []}</carried> <carried>{"edges": []}</carried>', Carried()),
        ('<carried>{"facts": {"a": 1}}</carried>', Carried()),
        ('x <carried>\n{"facts": {"a": "b"}, "dropped": []}\n</carried>', Carried(facts={"a": "b"}, dropped=())),
    ],
)
def test_what_a_summary_says_it_carries(text: str, carried: Carried) -> None:
    assert read_carried(text) == carried


def test_a_log_that_has_lost_its_journal_commits_nothing(guard: SyncGuard, log: MemoryLog, judged: Any) -> None:
    older = MemoryLog()
    for _ in range(20):
        log.event("hello")
    talk = Talk(guard, older, summary())
    with pytest.raises(Refused, match="position 20, as the guard tells, and this emitter stands at"):
        for _ in range(4):
            talk.say("Hello.")
    assert older.of("summary") == []
