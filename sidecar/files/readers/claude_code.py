"""Claude Code transcripts (one JSON object a line, one file a session) as protocol records.

What becomes what, in the order of the file, which is the order of the log:

- a line of the main conversation takes a position (as an opaque event, where nothing else is made of it); lines of
  side chains and of bookkeeping are counted and take none; a line that cannot be read takes a position too, and is
  missing there: nobody knows what it said;
- a prohibition that the user typed is a negative `constraint` (see `prohibitions`; only what the user typed counts:
  no tool results, summaries, reminders, command output or side chains; what the user typed while the agent was at
  work, or when refusing a call, does);
- a tool result is a `tool_result`, if what it returned may be a handle (see `calls`);
- a compaction (boundary and summary line) is a `summary`, a `checkpoint` of it without edges, for the format has
  none, and a `resume` from that, because the summary is what the agent goes on from. Each compaction is a node of
  its own, built from the one before it, so that a loss is blamed on the compaction where it happened. Its range
  begins at the session's start. Without a summary line it is partial and covers its own boundary only: what cannot
  be checked is unverified, and not lost.

- a prohibition on a branch that the user has left (by going back in the conversation and on from an earlier line) is
  withdrawn at the next compaction, as far as the tree of `parentUuid` tells; where it does not, it stays in force.

The session's records begin with the first line seen; several files with one session id are one session.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from xxhash import xxh3_64_hexdigest

from sidecar.files.jsonl import Line, explain
from sidecar.files.readers.account import Account, Compaction, Coverage, Prohibition, Repeat
from sidecar.files.readers.calls import REJECTED, Call, call_of, handle_of, text_of
from sidecar.files.readers.prohibitions import SummaryText, prohibitions, shown, telling_words
from sidecar.files.readers.reading import Arrival, Reading
from sidecar.files.readers.words import words
from sidecar.protocol.decode import is_timestamp
from sidecar.protocol.outputs import Source
from sidecar.protocol.records import Checkpoint, Constraint, Hole, Opaque, Record, Resume, Summary, ToolResult

PREAMBLE = "This session is being continued from a previous conversation"
"""How a summary line begins; some versions leave `isCompactSummary` out."""

_BOOKKEEPING = words(
    "summary file-history-snapshot queue-operation progress permission-mode mode last-prompt ai-title custom-title"
    " agent-name agent-color tag pr-link worktree-state cost-state"
)
_SYSTEM = words(
    "compact_boundary microcompact_boundary local_command informational api_error turn_duration stop_hook_summary"
    " away_summary bridge_status permission_retry scheduled_task_fire memory_saved agents_killed api_metrics"
    " file_snapshot thinking"
)
_NOT_TYPED = ("<command-", "<local-command-", "<bash-", "<task-notification", "<cross-session-message", "<user-memory-")
_NOT_TYPED_PLAIN = ("Caveat:", "[Request interrupted", PREAMBLE, "API Error")
_NOT_TYPED_ORIGINS = frozenset(("hook", "agent", "task-notification", "coordinator", "channel", "peer"))
_FAILED = ("api error", "error:", "request timed out", "prompt is too long", "conversation too long", "compaction fail",
           "failed to compact", "error during compaction", "request was aborted", "compaction canceled")  # fmt: skip
_CONVERSATION = ("user: t", "assistant:")
_FEEDBACK = "the user said:"


class _Boundary(Struct):
    """Hold a compaction until the conversation goes on: its summary, or another try, may still come."""

    at: Source
    position: int
    uuid: str | None
    metadata: dict[str, Any]
    ts: str | None
    summary: str | None = None
    summary_at: Source | None = None


class _Standing(Struct):
    """Hold a prohibition in force: its text, where it was last said, and whether the last summary still said it."""

    text: str
    uuid: str | None
    position: int
    told: Prohibition


class _Results(Struct):
    """Hold what a call returned before the last compaction and since: digests, with the lines."""

    epoch: int
    before: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)


class _Session(Struct):
    """Hold what later lines of a session can refer to."""

    id: str
    lines: list[Source] = field(default_factory=list)
    uuids: dict[str, tuple[int, int]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    last: str | None = None
    calls: dict[str, tuple[Call, int]] = field(default_factory=dict)
    results: dict[str, _Results] = field(default_factory=dict)
    standing: dict[str, _Standing] = field(default_factory=dict)
    pending: _Boundary | None = None
    places: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    compactions: int = 0
    turns: int = 0
    model: str | None = None

    def position(self) -> int:
        return len(self.lines)

    def take(self, at: Source) -> int:
        """Give a line the next position."""
        self.lines.append(at)
        return len(self.lines)


class ClaudeCode:
    """Read Claude Code transcripts; several files may be slices of one session."""

    def __init__(self) -> None:
        self._account = Account()
        self._sessions: dict[str, _Session] = {}
        self._current: dict[str, _Session] = {}

    @property
    def account(self) -> Account:
        self._account.sessions = len(self._sessions)
        return self._account

    def where(self, session_id: str, position: int) -> Source | None:
        session = self._sessions.get(session_id)
        if session is None or not 1 <= position <= len(session.lines):
            return None
        return session.lines[position - 1]

    def finish(self) -> list[Arrival]:
        """Judge the compactions after which nothing came, and count the calls that nobody answered."""
        arrivals: list[Arrival] = []
        for session in self._sessions.values():
            arrivals += self._compacted(session)
            if session.calls:
                self._account.notes["calls without a result"] += len(session.calls)
        return arrivals

    def read(self, line: Line) -> Reading:
        coverage = self._account.files.setdefault(line.file, Coverage())
        coverage.lines += 1
        problem = line.problem
        fields: Any = None
        if problem is None:
            try:
                fields = msgspec.json.decode(line.raw)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else f"not JSON: {error}"
                problem = explain(line.raw, reason)
        if problem is not None:
            self._account.unreadable += 1
            return Reading(self._hole(line), problem)
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            self._account.not_understood["(no type)"] += 1
            return Reading([])
        arrivals, kind = self._line(fields, line)
        if kind is None:
            self._account.not_understood[_name(fields)] += 1
        else:
            self._account.kinds[kind] += 1
            coverage.understood += 1
        return Reading(arrivals)

    def _hole(self, line: Line) -> list[Arrival]:
        """Leave the position of an unreadable line missing, in the session that the file was in."""
        session = self._current.get(line.file)
        if session is None:
            return []
        at = Source(line.file, 0, line.number)
        return [(Hole(session_id=session.id, seq=session.take(at)), 0, at)]

    def _line(self, fields: dict[str, Any], line: Line) -> tuple[list[Arrival], str | None]:
        """Return a line's records and what kind of line it is (None: not understood)."""
        kind: str = fields["type"]
        if kind in _BOOKKEEPING:
            mode = fields.get("permissionMode")
            if kind == "permission-mode" and isinstance(mode, str):
                self._account.notes[f"permission mode {mode}"] += 1
            return [], kind
        if fields.get("isSidechain") is True:
            if fields.get("subtype") == "compact_boundary":
                self._account.notes["compactions in side chains (not judged)"] += 1
            known = kind in ("user", "assistant", "attachment") or (kind == "system" and _known_system(fields))
            return [], f"side chain: {kind}" if known else None
        session = self._session(fields, line)
        uuid = _text(fields, "uuid")
        if uuid is not None and uuid in session.uuids:
            self._account.notes["lines repeated (same uuid)"] += 1
            return [], f"{kind}: repeated"
        read = {
            "user": self._user,
            "assistant": self._assistant,
            "system": self._system,
            "attachment": self._attachment,
        }
        at = Source(line.file, 0, line.number)
        first = session.position() + 1
        if kind not in read:
            return [_opaque(session, fields, at)], None
        arrivals, name = read[kind](session, fields, at)
        if uuid is not None:
            session.uuids[uuid] = (first, session.position())
            session.parents[uuid] = _text(fields, "parentUuid") or _text(fields, "logicalParentUuid")
            if name is not None and name.startswith(_CONVERSATION):
                session.last = uuid
            if name == "user: typed":
                session.typed.add(uuid)
        return arrivals, name

    def _session(self, fields: dict[str, Any], line: Line) -> _Session:
        name = _text(fields, "sessionId")
        if name is None:
            current = self._current.get(line.file)
            if current is not None:
                return current
            name = Path(line.file).stem or line.file
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(id=name)
        self._current[line.file] = session
        return session

    # --- the kinds of line ---------------------------------------------------------------------------------------

    def _user(self, session: _Session, fields: dict[str, Any], at: Source) -> tuple[list[Arrival], str | None]:
        message = fields.get("message")
        content = message.get("content") if isinstance(message, dict) else message
        if not isinstance(content, str | list):
            return [_opaque(session, fields, at)], None
        blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if results:
            arrivals = self._compacted(session)
            for block in results:
                arrivals += self._result(session, fields, block, at)
            return arrivals, "user: tool results"
        said = content if isinstance(content, str) else text_of([b for b in blocks if b.get("type") == "text"])
        if fields.get("isCompactSummary") is True or (session.pending is not None and said.startswith(PREAMBLE)):
            return self._summary(session, fields, said, at), "user: compaction summary"
        if not _typed(fields, said):
            return [_opaque(session, fields, at)], "user: not typed (commands, notices)"
        arrivals = self._compacted(session)
        session.turns += 1
        arrivals += self._said(session, fields, said, at) or [_opaque(session, fields, at)]
        return arrivals, "user: typed"

    def _attachment(self, session: _Session, fields: dict[str, Any], at: Source) -> tuple[list[Arrival], str | None]:
        attachment = fields.get("attachment")
        if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
            return [], "attachment"
        prompt = attachment.get("prompt")
        said = text_of(prompt) if isinstance(prompt, str | list) else ""
        if attachment.get("commandMode") not in (None, "prompt") or not _typed(fields, said):
            return [], "attachment"
        arrivals = self._compacted(session)
        session.turns += 1
        arrivals += self._said(session, fields, said, at) or [_opaque(session, fields, at)]
        return arrivals, "attachment: typed while the agent was at work"

    def _assistant(self, session: _Session, fields: dict[str, Any], at: Source) -> tuple[list[Arrival], str | None]:
        message = fields.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, str | list):
            return [_opaque(session, fields, at)], None
        arrivals = self._compacted(session)
        model = _text(message, "model")
        if model is not None and model != "<synthetic>":
            session.model = model
        calls = 0
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_use":
                calls += 1
                name = _text(block, "id")
                if name is not None:
                    session.calls[name] = (call_of(block), at.offset)
        arrivals.append(_opaque(session, fields, at))
        return arrivals, "assistant: tool calls" if calls else "assistant: text"

    def _system(self, session: _Session, fields: dict[str, Any], at: Source) -> tuple[list[Arrival], str | None]:
        if not _known_system(fields):
            return [_opaque(session, fields, at)], None
        subtype = _text(fields, "subtype")
        if subtype != "compact_boundary":
            return [_opaque(session, fields, at)], "system" if subtype is None else f"system: {subtype}"
        withdrawn = self._withdrawn(session, fields, at) if session.pending is None else []
        return [*withdrawn, self._boundary(session, fields, at)], "system: compact_boundary"

    # --- compactions ---------------------------------------------------------------------------------------------

    def _withdrawn(self, session: _Session, fields: dict[str, Any], at: Source) -> list[Arrival]:
        """Withdraw the prohibitions said on branches that do not lead to this boundary."""
        last = _text(fields, "logicalParentUuid")
        if last not in session.uuids:
            last = session.last
        path: set[str] = set()
        start = session.position() + 1
        while last is not None and last in session.uuids and last not in path:
            path.add(last)
            start = session.uuids[last][0]
            last = session.parents[last]
        arrivals: list[Arrival] = []
        for name, one in list(session.standing.items()):
            turn = _turn(session, one.uuid)
            if turn is None or turn in path or one.position < start:
                continue  # what lies before the path's known beginning may well be on it
            del session.standing[name]
            one.told.withdrawn = True
            record = Constraint(session_id=session.id, seq=session.take(at), constraint_id=name, retired=True)
            arrivals.append((record, record.seq, at))
        return arrivals

    def _boundary(self, session: _Session, fields: dict[str, Any], at: Source) -> Arrival:
        """Begin a compaction, unless one at the same place has been seen."""
        arrival = _opaque(session, fields, at)
        metadata = fields.get("compactMetadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        uuid, place = _text(fields, "uuid"), _text(fields, "logicalParentUuid")
        if place is None:
            self._account.notes["boundaries without logicalParentUuid"] += 1
        if session.pending is not None:
            self._account.notes["boundaries repeated at the same place"] += 1
            session.pending.metadata = metadata | session.pending.metadata
        elif place is not None and place in session.places:
            self._account.notes["boundaries repeated at the same place"] += 1
            session.repeated.add(uuid or "")
        else:
            session.pending = _Boundary(at, session.position(), uuid, metadata, _ts(fields))
        if place is not None:
            session.places.add(place)
        return arrival

    def _summary(self, session: _Session, fields: dict[str, Any], text: str, at: Source) -> list[Arrival]:
        """Take a summary line; the compaction is judged when the conversation goes on."""
        arrivals: list[Arrival] = []
        if session.pending is None:
            arrivals.append(_opaque(session, fields, at))
            if (_text(fields, "parentUuid") or "") in session.repeated:
                return arrivals
            self._account.notes["summaries without a boundary line"] += 1
            session.pending = _Boundary(at, session.position(), None, {}, _ts(fields))
        session.pending.summary = text
        session.pending.summary_at = at
        return arrivals

    def _compacted(self, session: _Session) -> list[Arrival]:
        """Make the records of the compaction that is waiting, if one is."""
        boundary, session.pending = session.pending, None
        if boundary is None:
            return []
        session.compactions += 1
        number = session.compactions
        problem = _problem(boundary.summary)
        carried = self._surviving(session, boundary)
        at = boundary.summary_at or boundary.at
        node, checkpoint = f"context-{number}", f"compaction-{number}"
        lo = 1 if boundary.summary else boundary.position
        common: dict[str, Any] = {"session_id": session.id, "agent": "claude-code", "model": session.model}
        common["ts"] = _timestamp(boundary.ts)
        summary = Summary(
            **common,
            seq=session.take(at),
            node_id=node,
            generation=1,
            level=number,
            frontier_lo=lo,
            frontier_hi=boundary.position,
            children=(f"context-{number - 1}",) if number > 1 else None,
            root=True,
            negative_constraints=tuple(carried),
            partial=problem is not None,
        )
        written = Checkpoint(
            **common,
            seq=session.take(at),
            checkpoint_id=checkpoint,
            node_id=node,
            summary_generation=1,
            level=number,
            turn=session.turns,
            frontier_lo=lo,
            frontier_hi=boundary.position,
        )
        resume = Resume(**common, seq=session.take(at), checkpoint_id=checkpoint)
        self._tell(session, boundary, carried, problem, checkpoint)
        records: tuple[Record, ...] = (summary, written, resume)
        return [(record, record.seq or 0, at) for record in records]

    def _surviving(self, session: _Session, boundary: _Boundary) -> list[str]:
        """Return the prohibitions that the summary still says, or whose message was preserved beside it."""
        text = SummaryText(boundary.summary or "")
        kept = _preserved(boundary.metadata)
        first, last = _segment(session, boundary)
        return [
            name
            for name, one in session.standing.items()
            if one.uuid in kept or first <= one.position <= last or text.says(one.text)
        ]

    def _tell(
        self, session: _Session, boundary: _Boundary, carried: list[str], problem: str | None, checkpoint: str
    ) -> None:
        """Put the compaction, and the prohibitions that it lost, into the account."""
        metadata, alive = boundary.metadata, set(carried)
        if boundary.summary:
            for name, one in session.standing.items():
                if name not in alive and one.told.lost_at is None:
                    one.told.lost_at, one.told.lost_line = session.compactions, boundary.at.offset
        self._account.compactions.append(
            Compaction(
                session_id=session.id,
                number=session.compactions,
                checkpoint_id=checkpoint,
                file=boundary.at.topic,
                line=boundary.at.offset,
                summary_line=boundary.summary_at.offset if boundary.summary_at else None,
                trigger=_text(metadata, "trigger"),
                pre_tokens=_number(metadata, "preTokens"),
                post_tokens=_number(metadata, "postTokens"),
                problem=problem,
                preserved=len(_preserved(metadata)),
                prohibitions=len(session.standing),
                survived=len(alive),
            )
        )

    # --- what is in a line ---------------------------------------------------------------------------------------

    def _said(self, session: _Session, fields: dict[str, Any], text: str, at: Source) -> list[Arrival]:
        """Make constraints of the prohibitions in what the user typed."""
        arrivals: list[Arrival] = []
        for clause in prohibitions(text):
            name = _constraint_id(clause)
            record = Constraint(
                session_id=session.id,
                seq=session.take(at),
                ts=_timestamp(_ts(fields)),
                agent="claude-code",
                constraint_id=name,
                polarity="negative",
                text=clause,
            )
            arrivals.append((record, record.seq, at))
            known = session.standing.get(name)
            if known is None or known.told.lost_at is not None:
                told = Prohibition(
                    session_id=session.id, constraint_id=name, file=at.topic, line=at.offset, text=shown(clause)
                )
                self._account.prohibitions.append(told)
            else:
                told = known.told
            session.standing[name] = _Standing(clause, _text(fields, "uuid"), record.seq, told)
        return arrivals

    def _result(self, session: _Session, fields: dict[str, Any], block: dict[str, Any], at: Source) -> list[Arrival]:
        """Make a `tool_result` of a result that may be a handle, and note calls that were executed again."""
        call, _ = session.calls.pop(_text(block, "tool_use_id") or "", (None, 0))
        content = block.get("content")
        failed = block.get("is_error") is True
        if failed and text_of(content).startswith(REJECTED):
            self._account.notes["calls rejected by the user"] += 1
            feedback = text_of(content).partition(_FEEDBACK)[2]
            return self._said(session, fields, feedback, at) or [_opaque(session, fields, at)]
        if call is None:
            self._account.notes["results without a call"] += 1
            return [_opaque(session, fields, at)]
        handle = handle_of(content)
        why = "it failed" if failed else call.no_handle
        self._again(session, call, handle, why, failed, at)
        if why is not None:
            return [_opaque(session, fields, at)]
        record = ToolResult(
            session_id=session.id,
            seq=session.take(at),
            ts=_timestamp(_ts(fields)),
            agent="claude-code",
            model=session.model,
            call_key=call.key,
            handle=handle,
        )
        return [(record, record.seq, at)]

    def _again(self, session: _Session, call: Call, handle: str, why: str | None, failed: bool, at: Source) -> None:
        """Note a call that had one result before the last compaction and has another one after it."""
        seen = session.results.setdefault(call.key, _Results(session.compactions))
        if seen.epoch < session.compactions:
            seen.before |= seen.since
            seen.since = {}
            seen.epoch = session.compactions
        if len(seen.before) == 1 and handle not in seen.before and handle not in seen.since:
            self._account.repeats.append(
                Repeat(
                    session_id=session.id,
                    tool=call.tool,
                    call=call.shown,
                    call_key=call.key,
                    file=at.topic,
                    first_line=next(iter(seen.before.values())),
                    again_line=at.offset,
                    judged=why is None,
                    why=why,
                )
            )
        elif len(seen.before) > 1 and handle not in seen.before:
            self._account.notes["calls with several results before the compaction (not judged)"] += 1
        if not failed:
            seen.since.setdefault(handle, at.offset)


def _turn(session: _Session, uuid: str | None) -> str | None:
    """Return the typed line that a line belongs to; None where the tree does not tell."""
    seen: set[str] = set()
    while uuid is not None and uuid not in session.typed:
        if uuid in seen:
            return None
        seen.add(uuid)
        uuid = session.parents.get(uuid)
    return uuid


def _opaque(session: _Session, fields: dict[str, Any], at: Source) -> Arrival:
    record = Opaque(session_id=session.id, seq=session.take(at), ts=_timestamp(_ts(fields)))
    return record, record.seq, at


def _typed(fields: dict[str, Any], text: str) -> bool:
    """Tell whether a text is what the user typed, and not what a command, a hook or the harness put there."""
    if any(fields.get(flag) is True for flag in ("isMeta", "isVisibleInTranscriptOnly", "isSynthetic")):
        return False
    origin = fields.get("origin")
    origin = origin.get("kind") if isinstance(origin, dict) else origin
    start = text.lstrip()
    if origin in _NOT_TYPED_ORIGINS or not start:
        return False
    return not start.startswith(_NOT_TYPED) and not start.startswith(_NOT_TYPED_PLAIN)


def _problem(summary: str | None) -> str | None:
    """Say why a summary cannot be taken for one: there is none, or it is an error text."""
    if not summary or not summary.strip():
        return "no summary line after the boundary: what survived cannot be checked"
    said = summary.partition("\n")[2] if summary.startswith(PREAMBLE) else summary
    start = said.strip().lower()[:200]
    if len(summary) < 2000 and start.startswith(_FAILED):
        return "the summary is an error text"
    return None


def _preserved(metadata: dict[str, Any]) -> set[str]:
    messages = metadata.get("preservedMessages")
    if not isinstance(messages, dict):
        return set()
    lists = (messages.get("uuids"), messages.get("allUuids"))
    return {uuid for one in lists if isinstance(one, list) for uuid in one if isinstance(uuid, str)}


def _segment(session: _Session, boundary: _Boundary) -> tuple[int, int]:
    """Return the positions of the preserved segment's ends; (1, 0), an empty range, where there is none.

    Its last lines may be written after the boundary, so one without a known end goes up to there.
    """
    segment = boundary.metadata.get("preservedSegment")
    if not isinstance(segment, dict):
        return 1, 0
    head, tail = (session.uuids.get(_text(segment, name) or "") for name in ("headUuid", "tailUuid"))
    if head is None:
        return 1, 0
    return head[0], boundary.position if tail is None else tail[1]


def _constraint_id(clause: str) -> str:
    """Return the same id for the same prohibition said again: its first words, and a digest of all of them."""
    said = " ".join(clause.lower().split()).rstrip(".!,; ")
    slug = "-".join(telling_words(clause)[:4])
    return f"{slug}-{xxh3_64_hexdigest(said.encode())[:8]}"


def _known_system(fields: dict[str, Any]) -> bool:
    subtype = fields.get("subtype")
    return subtype is None or (isinstance(subtype, str) and subtype in _SYSTEM)


def _name(fields: dict[str, Any]) -> str:
    subtype = _text(fields, "subtype")
    return fields["type"] if subtype is None else f"{fields['type']}: {subtype}"


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if type(value) is int else None


def _ts(fields: dict[str, Any]) -> str | None:
    return _text(fields, "timestamp")


def _timestamp(ts: str | None) -> datetime | None:
    """Return a timestamp as the records hold it; one that cannot be read counts as absent."""
    return msgspec.convert(ts, datetime) if ts is not None and is_timestamp(ts) else None
