"""The Claude Code reader: transcripts made by hand, with what a person finds in them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.files.jsonl import Inputs
from sidecar.files.readers import READERS
from sidecar.files.readers.account import Account
from sidecar.files.readers.calls import call_of, handle_of
from sidecar.files.readers.claude_code import ClaudeCode
from sidecar.files.readers.prohibitions import SummaryText, prohibitions
from sidecar.protocol.decode import decode
from sidecar.protocol.records import Hole
from tests.files.support import DATA, Checked, run_check

TWO = DATA / "two-compactions.jsonl"
TROUBLED = DATA / "troubled.jsonl"


def read(*paths: Path) -> Account:
    reader = ClaudeCode()
    for line in Inputs([str(path) for path in paths]):
        reader.read(line)
    reader.finish()
    return reader.account


def claude(*paths: Path, **options: Any) -> Checked:
    return run_check(*paths, reader="claude-code", **options)


def found(checked: Checked, rule: str) -> list[tuple[str, list[int]]]:
    """Return subject and witness lines of a rule's findings."""
    return [
        (line["subject"]["id"], [int(where.rpartition(":")[2]) for where in line["evidence"]["witness_lines"]])
        for line in checked.lines
        if line["rule"] == rule
    ]


# --- two-compactions.jsonl, line by line ------------------------------------------------------------------------
# 4 typed: two prohibitions (push to main; billing/)      15 typed while at work: a third (the old retry table)
# 16 a reminder, 17 a side chain: prohibitions that are nobody's standing ones
# 21 a refusal, with a fourth (SQL against production)    23/24 the first compaction: carries pushing and the table
# 29 the volume of 11 created again, with another id      27 a file read again, changed; 31 git status, the same
# 35 typed: a fifth (dependencies), an idiom, a question  36/37 the second compaction: carries the table and the fifth,
#                                                         and says of pushes only where they go, which forbids nothing
# 38, 39 command lines after it                           42 the pull request of 13 opened again; 43 no result


def test_the_account_of_two_compactions() -> None:
    account = read(TWO)
    assert (account.coverage.lines, account.coverage.understood, account.unreadable) == (43, 42, 0)
    assert account.not_understood == {"hologram": 1}
    assert account.kinds["side chain: user"] == 2
    assert account.kinds["system: microcompact_boundary"] == 1
    where = [(c.line, c.summary_line, c.trigger, c.pre_tokens, c.post_tokens) for c in account.compactions]
    assert where == [(23, 24, "auto", 167_000, None), (36, 37, "manual", 91_000, 8_000)]
    assert [(c.prohibitions, c.survived) for c in account.compactions] == [(4, 2), (5, 2)]
    lost = {p.text: (p.line, p.lost_at, p.lost_line) for p in account.prohibitions}
    assert lost == {
        "Never push to the main branch.": (4, 2, 36),
        "Don't touch the files under billing/, they belong to another team.": (4, 1, 23),
        "also, you must not delete the old retry table": (15, None, None),
        "Never run SQL against production.": (21, 1, 23),
        "don't add new dependencies.": (35, None, None),
    }
    assert [(r.tool, r.first_line, r.again_line, r.judged) for r in account.repeats] == [
        ("Read", 7, 27, False),
        ("mcp__cloud__create_volume", 11, 29, True),
        ("Bash", 13, 42, True),
    ]
    assert account.notes["calls rejected by the user"] == 1
    assert account.notes["calls without a result"] == 1


def test_the_findings_of_two_compactions() -> None:
    checked = claude(TWO)
    assert checked.code == 1
    assert [lines for _, lines in found(checked, "constraint_dropped")] == [[4, 24], [21, 24], [4, 37]]
    assert [subject for subject, _ in found(checked, "constraint_dropped")] == ["context-1", "context-1", "context-2"]
    assert {line["severity"] for line in checked.lines if line["rule"] == "constraint_dropped"} == {"critical"}
    assert [lines for _, lines in found(checked, "provenance_divergence")] == [[11, 24, 29], [13, 37, 42]]
    assert [subject for subject, _ in found(checked, "frontier_unverified")] == ["compaction-1", "compaction-2"]
    assert [subject for subject, _ in found(checked, "resumed_unverified")] == ["compaction-1", "compaction-2"]
    assert {line["rule"] for line in checked.lines} == {
        "constraint_dropped", "provenance_divergence", "frontier_unverified", "resumed_unverified",
        "unreconciled_recompaction",
    }  # fmt: skip
    assert all(line["source"]["topic"] == str(TWO) for line in checked.lines)


def test_the_summary_tells_the_account() -> None:
    err = claude(TWO).err
    for said in (
        "42 understood (97.7% coverage), 1 not understood, 0 unreadable",
        "hologram",
        f"{TWO}:23",
        "167,000",
        "2 of 5 survived",
        "every checkpoint is unverified",
        "candidates, to be looked at by a person",
        "Never push to the main branch.",
        "gh pr create --title 'Retries' --body ''",
        "it only looks",
    ):
        assert said in err


def test_a_troubled_transcript() -> None:
    """A boundary twice, a compaction without summary, one with an error text, a preserved message, a torn line."""
    account = read(TROUBLED)
    assert [(c.line, c.summary_line) for c in account.compactions] == [(3, None), (8, 9), (11, 12)]
    assert account.compactions[0].problem == "no summary line after the boundary: what survived cannot be checked"
    assert account.compactions[1].problem == "the summary is an error text"
    assert account.compactions[2].problem is None
    assert account.notes["boundaries repeated at the same place"] == 1
    assert account.notes["lines repeated (same uuid)"] == 1
    assert account.unreadable == 1
    assert [(p.text, p.lost_at) for p in account.prohibitions] == [
        ("Do not rename the public API.", 2),
        ("avoid changing the database schema.", None),  # its message was preserved
    ]
    checked = claude(TROUBLED)
    # What has no summary is partial and unverified; it is not said to have lost anything.
    assert found(checked, "constraint_dropped") == [("context-2", [1, 9])]
    assert [subject for subject, _ in found(checked, "partial_summary")] == ["compaction-1", "compaction-2"]
    assert [line["rule"] for line in checked.lines].count("log_gap") == 1  # the torn line: nobody knows what it said
    assert checked.code == 1
    assert claude(TROUBLED, strict=True).code == 2


def test_slices_of_one_session_are_one_session() -> None:
    checked = claude(DATA / "slice-1.jsonl", DATA / "slice-2.jsonl")
    assert {line["rule"] for line in checked.lines} == {"frontier_unverified", "resumed_unverified"}
    account = read(DATA / "slice-1.jsonl", DATA / "slice-2.jsonl")
    assert account.sessions == 1
    assert [(p.text, p.lost_at) for p in account.prohibitions] == [("Never use eval in this project.", None)]


def test_what_was_mostly_not_understood_is_not_called_clean(tmp_path: Path) -> None:
    checked = claude(DATA / "mostly-unknown.jsonl")
    assert checked.code == 2
    assert "only 25.0%" in checked.err
    assert claude(DATA / "slice-1.jsonl", DATA / "mostly-unknown.jsonl").code == 2
    records = tmp_path / "records.jsonl"
    records.write_text('{"kind": "note", "session_id": "s", "seq": 1}\n')
    assert claude(records).code == 2
    records.write_text("")
    assert claude(records).code == 2


def test_a_transcript_without_compactions_is_clean() -> None:
    checked = claude(DATA / "slice-1.jsonl")
    assert (checked.code, checked.out) == (0, "")
    assert "no compactions" in checked.err


def test_the_records_are_records_of_the_protocol() -> None:
    """Whatever the reader makes would also be read from a log."""
    reader = READERS["claude-code"]()
    arrivals = [a for line in Inputs([str(TWO), str(TROUBLED)]) for a in reader.read(line).arrivals]
    arrivals += reader.finish()
    seqs: dict[str, int] = {}
    for record, _, source in arrivals:
        assert record.seq == seqs.get(record.session_id, 0) + 1
        seqs[record.session_id] = record.seq
        assert reader.where(record.session_id, record.seq) == source
        if type(record) is not Hole:
            fields = msgspec.to_builtins(record)
            fields.setdefault("kind", "opaque")
            assert decode(msgspec.json.encode(fields))[0] == record


# --- the small parts -------------------------------------------------------------------------------------------


def _lines(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"sessionId": "s", **line}).encode() + b"\n" for line in lines)


def typed(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, **fields}


def boundary(**fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": "compact_boundary", **fields}


def summary(text: str, **fields: Any) -> dict[str, Any]:
    return typed(text, isCompactSummary=True, **fields)


def call(name: str, **given: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "t", "name": name, "input": given}
    return {"type": "assistant", "message": {"role": "assistant", "content": [block]}}


def result(text: Any, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "t", "content": text, **fields}
    return {"type": "user", "message": {"role": "user", "content": [block]}}


def account_of(tmp_path: Path, *lines: dict[str, Any]) -> Account:
    path = tmp_path / "t.jsonl"
    path.write_bytes(_lines(*lines))
    return read(path)


@pytest.mark.parametrize(
    "line",
    [
        typed("Never push.", isMeta=True),
        typed("Never push.", isVisibleInTranscriptOnly=True),
        typed("Never push.", isSidechain=True),
        typed("Never push.", origin={"kind": "task-notification"}),
        typed("<local-command-stdout>Never push.</local-command-stdout>"),
        typed("Caveat: never push."),
        typed("<system-reminder>Never push.</system-reminder>"),
        summary("Never push."),
        {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "Never push."}]}},
        result("Never push."),
        result([{"type": "text", "text": "Never push."}]),
        {"type": "attachment", "attachment": {"type": "file", "content": "Never push."}},
        {"type": "queue-operation", "operation": "enqueue", "content": "Never push."},
    ],
)
def test_only_what_the_user_typed_is_a_prohibition(tmp_path: Path, line: dict[str, Any]) -> None:
    assert account_of(tmp_path, typed("Hello."), call("X"), line).prohibitions == []


def test_blocks_of_text_are_typed_too(tmp_path: Path) -> None:
    content = [{"type": "image", "source": {}}, {"type": "text", "text": "Never push."}]
    line = {"type": "user", "message": {"role": "user", "content": content}}
    assert [p.text for p in account_of(tmp_path, line).prohibitions] == ["Never push."]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Never push to main. Don't worry.", ["Never push to main."]),
        ("Please do not, under any circumstances, delete data", ["do not, under any circumstances, delete data"]),
        ("Fix it, but don't change the API.", ["don't change the API."]),
        ("You must not force-push", ["You must not force-push"]),
        ("I do not want you to edit generated files", ["I do not want you to edit generated files"]),
        ("- don't commit secrets\n- avoid global state", ["don't commit secrets", "avoid global state"]),
        ("Don’t use curly quotes", ["Don't use curly quotes"]),
        ("Remember: don't deploy on Friday!", ["don't deploy on Friday!"]),
        ("Under no circumstances touch the lock file.", ["Under no circumstances touch the lock file."]),
        ("Why don't you refactor it? Can you avoid mocks?", []),
        ("don't do that. Never mind. Don't forget to run the tests. Don't stop until it works.", []),
        ("It doesn't work. I don't know. We don't use yarn here. It never worked. It never returns null.", []),
        ("The button should not be visible.", []),
        ("```\nnever do this\n```\n> never do that\n<system-reminder>never ever push</system-reminder>", []),
        ("A List<String> here; never push it.", ["never push it."]),
    ],
)
def test_finding_prohibitions(text: str, clauses: list[str]) -> None:
    assert list(prohibitions(text)) == clauses


@pytest.mark.parametrize(
    ("prohibition", "said", "survives"),
    [
        ("Never push to main.", "The user asked: never push to main!", True),
        ("Never push to main.", "- pushing to main is forbidden", True),
        ("Never push to main.", "Pushed to main.", False),
        ("Never push to main.", "Nothing was decided. The tests pass.", False),
        ("Don't touch the files under billing/", "Constraint: leave billing/ files untouched", True),
        ("Don't touch the files under billing/", "Constraint:\n- no changes\n- billing/ files", True),
        ("Never run SQL against production.", "Do not deploy to production.", False),
        ("don't commit secrets", "Committing of secrets must be avoided", True),
    ],
)
def test_survival(prohibition: str, said: str, survives: bool) -> None:
    assert SummaryText(said).says(prohibition) is survives


@pytest.mark.parametrize(
    ("tool", "given", "looks"),
    [
        ("Read", {"file_path": "a"}, True),
        ("Edit", {"file_path": "a"}, True),
        ("Bash", {"command": "git status && ls -la | head 2>/dev/null"}, True),
        ("Bash", {"command": "cd x; FOO=1 timeout 60 pytest -q 2>&1 | tail"}, True),
        ("Bash", {"command": "git -C sub log"}, True),
        ("Bash", {"command": "git commit -m x"}, False),
        ("Bash", {"command": "echo x > file"}, False),
        ("Bash", {"command": "ls $(rm -rf x)"}, False),
        ("Bash", {"command": "find . -delete"}, False),
        ("Bash", {"command": "sed -i s/a/b/ f"}, False),
        ("Bash", {"command": "gh pr create"}, False),
        ("Bash", {"command": "curl -X POST https://x"}, False),
        ("Bash", {"command": "unbalanced '"}, False),
        ("Bash", {}, False),
        ("mcp__tickets__create", {"title": "x"}, False),
        ("Task", {"prompt": "x"}, False),
    ],
)
def test_which_calls_only_look(tool: str, given: dict[str, Any], looks: bool) -> None:
    assert (call_of({"name": tool, "input": given}).no_handle is not None) is looks


def test_a_call_is_its_tool_and_input_and_a_result_its_content() -> None:
    one, two = ({"name": "X", "input": given} for given in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert call_of(one).key == call_of(two).key != call_of({"name": "Y", "input": {"a": 1, "b": 2}}).key
    plain = handle_of("made vol-1")
    assert handle_of([{"type": "text", "text": "made vol-1"}]) == plain
    assert handle_of("\x1b[1mmade vol-1\x1b[0m  \n\n<system-reminder>hm</system-reminder>") == plain
    assert handle_of("made vol-2") != plain


def test_a_call_that_varies_by_itself_is_not_judged(tmp_path: Path) -> None:
    tail = (typed("Hi."), boundary(), summary("All well."), call("Make"), result("3"))
    account = account_of(tmp_path, call("Make"), result("1"), call("Make"), result("2"), *tail)
    assert account.repeats == []
    assert account.notes["calls with several results before the compaction (not judged)"] == 1
    account = account_of(tmp_path, call("Make"), result("1"), *tail, call("Make"), result("3"))
    assert len(account.repeats) == 1


def test_failed_calls_return_no_handle(tmp_path: Path) -> None:
    tail = (boundary(), summary("All well."), call("Make"), result("no", is_error=True))
    account = account_of(tmp_path, call("Make"), result("1"), *tail)
    assert [(r.judged, r.why) for r in account.repeats] == [(False, "it failed")]
    assert account_of(tmp_path, call("Make"), result("no", is_error=True), *tail[:3], result("1")).repeats == []


def test_versions_differ_in_how_they_mark_a_compaction(tmp_path: Path) -> None:
    preamble = "This session is being continued from a previous conversation that ran out of context."
    unmarked = account_of(tmp_path, typed("Never push."), boundary(), typed(f"{preamble}\nNo pushes."), typed("Go."))
    assert [(c.line, c.summary_line, c.survived) for c in unmarked.compactions] == [(2, 3, 1)]
    old = account_of(tmp_path, typed("Never push."), summary(f"{preamble}\nNo pushes."), typed("Go."))
    assert [(c.line, c.summary_line, c.survived) for c in old.compactions] == [(2, 2, 1)]
    apart = account_of(
        tmp_path, typed("Never push."), boundary(), {"type": "attachment", "attachment": {}}, summary("No pushes.")
    )
    assert [(c.line, c.summary_line, c.survived) for c in apart.compactions] == [(2, 4, 1)]


def test_a_boundary_written_again_later_is_counted_once(tmp_path: Path) -> None:
    account = account_of(
        tmp_path,
        typed("Never push.", uuid="u1"),
        boundary(uuid="b1", logicalParentUuid="u1"),
        summary("No pushes.", parentUuid="b1", uuid="s1"),
        typed("Go.", uuid="u2"),
        boundary(uuid="b2", logicalParentUuid="u1"),
        summary("Something else.", parentUuid="b2", uuid="s2"),
        typed("Go on.", uuid="u3"),
    )
    assert [c.line for c in account.compactions] == [2]
    assert account.prohibitions[0].lost_at is None


def test_a_preserved_segment_keeps_what_was_said_in_it(tmp_path: Path) -> None:
    segment = {"headUuid": "u2", "anchorUuid": "b", "tailUuid": "u3"}
    account = account_of(
        tmp_path,
        typed("Never push.", uuid="u1"),
        typed("Never merge. Never rebase.", uuid="u2"),
        typed("Go.", uuid="u3"),
        boundary(uuid="b", compactMetadata={"trigger": "auto", "preservedSegment": segment}),
        summary("All well.", parentUuid="b"),
    )
    assert [(p.text, p.lost_at) for p in account.prohibitions] == [
        ("Never push.", 1), ("Never merge.", None), ("Never rebase.", None)
    ]  # fmt: skip


def test_the_end_of_a_preserved_segment_may_come_after_the_boundary(tmp_path: Path) -> None:
    segment = {"headUuid": "u2", "anchorUuid": "s", "tailUuid": "a1"}
    account = account_of(
        tmp_path,
        typed("Never push.", uuid="u1"),
        typed("Never merge.", uuid="u2"),
        boundary(uuid="b", logicalParentUuid="a1", compactMetadata={"preservedSegment": segment}),
        summary("All well.", parentUuid="b", uuid="s"),
        {"type": "assistant", "uuid": "a1", "message": {"content": [{"type": "text", "text": "Fine."}]}},
    )
    assert [(p.text, p.lost_at) for p in account.prohibitions] == [("Never push.", 1), ("Never merge.", None)]


def test_what_was_said_on_a_branch_that_the_user_left_is_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(
        _lines(
            typed("Never push.", uuid="u1"),
            typed("Never merge.", uuid="u2", parentUuid="u1"),
            typed("Never rebase.", uuid="u3", parentUuid="u1"),  # gone back to u1, and on from there
            boundary(uuid="b", logicalParentUuid="u3"),
            summary("All well.", parentUuid="b"),
        )
    )
    assert [lines for _, lines in found(claude(path), "constraint_dropped")] == [[1, 5], [3, 5]]
    assert [p.text for p in read(path).prohibitions if p.withdrawn] == ["Never merge."]
    unknown = account_of(tmp_path, typed("Never push.", uuid="u1"), typed("Go.", uuid="u2", parentUuid="?"), boundary())
    assert not unknown.prohibitions[0].withdrawn  # the tree does not tell


def test_refusals_of_parallel_calls_are_on_no_branch_of_their_own(tmp_path: Path) -> None:
    refusal = (
        "The user doesn't want to proceed with this tool use. To tell you how to proceed, the user said:\nNever push."
    )
    account = account_of(
        tmp_path,
        typed("Go.", uuid="u1"),
        {**call("Make"), "uuid": "a1", "parentUuid": "u1"},
        {**call("Make"), "uuid": "a2", "parentUuid": "a1"},
        {**result(refusal, is_error=True), "uuid": "r1", "parentUuid": "a1"},
        {**result("made"), "uuid": "r2", "parentUuid": "a2"},
        boundary(uuid="b", logicalParentUuid="r2"),
        summary("All well."),
    )
    assert [(p.text, p.lost_at, p.withdrawn) for p in account.prohibitions] == [("Never push.", 1, False)]


def test_a_prohibition_said_again_counts_from_there(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(
        _lines(
            typed("Never push."), boundary(), summary("All well."),
            typed("never push"), boundary(), summary("All well."),
            typed("Go."), boundary(), summary("All well."), typed("Go."),
        )
    )  # fmt: skip
    assert [lines for _, lines in found(claude(path), "constraint_dropped")] == [[1, 3], [4, 6]]  # and not at the third
    assert [(p.line, p.lost_at) for p in read(path).prohibitions] == [(1, 1), (4, 2)]


def test_odd_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    preserved = {"preservedMessages": {"uuids": [1]}, "preservedSegment": {"headUuid": 1}, "preTokens": "x"}
    odd: list[Any] = [
        1, [], {}, {"type": 1},
        {"type": "user"}, {"type": "user", "message": 3}, {"type": "user", "message": {"content": [1]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": 3}]}},
        {"type": "system", "subtype": 7}, boundary(compactMetadata=3, uuid=4),
        {"type": "user", "sessionId": 5, "message": {"content": [{"type": "tool_result"}]}},
        boundary(compactMetadata=preserved),
        {"type": "attachment", "attachment": {"type": "queued_command", "prompt": 1}},
        {"type": "user", "isSidechain": "x"},
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(line) for line in odd))
    checked = claude(path)
    assert checked.code in (1, 2)
    assert re.search(r"14 lines in 1 file", checked.err)
