"""The guard under whatever its own document allows, and what it does not: no fault, and no yes that is not one.

Every yes is held against the naive judge, which gets the session's log and the record that was asked about, and knows
neither the engine nor the guard.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sidecar.engine import ask
from sidecar.engine.live import Standing
from sidecar.engine.rules import CATALOGUE
from sidecar.protocol.openapi import ASKED, ROUTES
from tests.guard.support import FakeSessions, guarded
from tests.judge.naive import judge, read
from tests.judge.sessions import ACTIONS, NODES, REFERENTS, Row, arrange, random_session
from tests.properties.compare import arrivals

EXAMPLES = 80
CONFORMANCE = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
HEALTHY = ("verified", "stale", "uncompacted")
TROUBLES = ("restoring", "lagging", "not_owned", "unavailable")


def is_well(verdict: dict[str, Any]) -> bool:
    """Tell whether an action may be permitted: without a checkpoint, also after a hole that the grant stands behind."""
    holed = verdict["status"] == "unverified" and verdict["checkpoint_in_force"] is None
    return (verdict["status"] in HEALTHY or holed) and not verdict["open_halts"]


class Population:
    """Sessions stopped at random moments, their logs as they came, and a summary that would come next."""

    def __init__(self, size: int = 48) -> None:
        self.sessions = FakeSessions()
        self.lines: dict[str, list[bytes]] = {}
        self.next: dict[str, Row] = {}
        self.checkpoints: dict[str, list[str]] = {}
        self.granted: dict[str, list[str]] = {}
        for seed in range(size):
            rng = random.Random(seed)
            session_id = f"team/{seed} %" if seed % 5 == 0 else f"s{seed}"
            rows = random_session(rng, session_id)
            kinds = [row["kind"] for row in rows]
            places = [n for n, kind in enumerate(kinds) if kind == "summary"] or [len(rows) - 1]
            after = [n + 1 for n, kind in enumerate(kinds) if kind == "checkpoint"] or places
            cut = rng.choice(after if seed % 2 else places)
            damage = {"drop": 0.03, "conflicts": 0.02, "unreadable": 0.02} if seed % 3 == 0 else {}
            self.lines[session_id] = arrange(rng, [rows[:cut]], **damage)
            self.next[session_id] = next((row for row in rows[cut:] if row["kind"] == "summary"), {})
            self.checkpoints[session_id] = [row["checkpoint_id"] for row in rows[:cut] if row["kind"] == "checkpoint"]
            edges = [row for row in rows[:cut] if row["kind"] == "authorization"]
            self.granted[session_id] = [edge["action_id"] for edge in edges if "action_id" in edge]
        engine = self.sessions.engine
        for lines in self.lines.values():
            engine.fold(arrivals(lines), 0.0)
        engine.finish()
        engine.take_changed()
        engine.shrink(10.0, 1.0)  # all asleep; those that are asked about stay so
        for trouble in TROUBLES:
            self.sessions.trouble[trouble] = Standing(trouble=trouble, owner="http://other:1")  # type: ignore[arg-type]
        self.known = [name for name in self.lines if ask.applied(engine, name) is not None]
        well = [s.session_id for s in engine.states() if s.status in HEALTHY and not s.open_halts]
        self.ids = [*TROUBLES, "nobody", *self.known, *well, *well, *well]

    def steer(self, draw: Any, name: str, body: Any) -> Any:
        """Turn most of what was made up towards something that exists."""
        if not isinstance(body, dict) or not draw(st.integers(0, 5)):
            return body
        pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
        session_id = pick(*self.ids)
        checkpoints = self.checkpoints.get(session_id, [])[-2:] or ["nothing"]
        granted = self.granted.get(session_id, [])
        proposed = self.next.get(session_id)
        body = {**body, "session_id": session_id, "min_seq": pick(None, None, None, 0, 1, 5, 10**6)}
        if name == "authorize":
            body |= {"action_id": pick(*ACTIONS, *granted), "checkpoint_id": pick(None, None, None, *checkpoints)}
        elif name == "resume":
            body |= {"checkpoint_id": pick(*checkpoints), "deps": pick([], [], [*REFERENTS[:1]], [*REFERENTS])}
        elif name == "gc":
            body["node_ids"] = pick([], ["ghost"], [*NODES], *([node] for node in NODES))
        elif proposed:
            body = {**{key: value for key, value in proposed.items() if key != "seq"}, "min_seq": body["min_seq"]}
            body["generation"] += pick(0, 0, 1, 2)
        return body

    def would_find(self, session_id: str, row: dict[str, Any]) -> Counter[tuple[str, str]]:
        """Return what the naive judge finds beyond all before, if this record came next."""
        lines = self.lines[session_id]
        after, before = (
            Counter((f.rule, f.subject_id, f.position, str(f.detail)) for f in judge(given).findings)
            for given in ([*lines, json.dumps(row).encode()], lines)
        )
        return Counter((rule, subject) for rule, subject, *_ in (after - before).elements())

    def wrongly_said_yes(self, name: str, question: dict[str, Any], answer: dict[str, Any]) -> str | None:
        """Say why a yes cannot be right; None: it can, or it is no yes."""
        yes = answer["allowed"] if name == "authorize" else answer["decision"] in ("resume", "commit", "reclaim")
        if not yes and not answer.get("reclaimable"):
            return None
        session_id = question["session_id"]
        if session_id not in self.lines:
            return "nobody knows this session"
        verdict = judge(self.lines[session_id]).sessions[0]
        if verdict["status"] == "unjudged":
            return "nothing is known of the session"
        position = ask.applied(self.sessions.engine, session_id)
        assert position is not None
        if question.get("min_seq") is not None and question["min_seq"] > position:
            return "the log has not got there"
        row = {key: value for key, value in question.items() if key != "min_seq"}
        row = {"seq": position + 1, **row, "session_id": session_id}
        if name == "authorize":
            if not is_well(verdict):
                return "the session is not well"
            row = {**row, "kind": "action", "irreversible": True}
            if question.get("checkpoint_id") is not None:
                resumed = {"kind": "resume", "session_id": session_id, "seq": position + 1}
                found = self.would_find(session_id, {**resumed, "checkpoint_id": question["checkpoint_id"]})
                if any(rule == "resumed_unverified" for rule, _ in found):
                    return "the checkpoint is not verified"
        elif name == "resume":
            row["kind"] = "resume"
        elif name == "commit":
            row["kind"] = "summary"
            if question.get("seq") is not None and question["seq"] != position + 1:
                return "its position is not the next one"
            if question.get("as_of_seq") is not None and question.get("seq") is None:
                del row["seq"]
        else:
            row["kind"] = "gc"
            known = {json.loads(line).get("node_id") for line in self.lines[session_id] if b'"summary"' in line}
            if not set(answer["reclaimable"]) <= known & set(question["node_ids"]):
                return "a node is unknown, or was not asked about"
            if verdict["open_halts"]:
                return "a halt is open"
            row["node_ids"] = answer["reclaimable"]
        bad = [rule for rule, _ in self.would_find(session_id, row) if CATALOGUE[rule].severity != "warning"]
        return f"it would break {bad}" if bad else None


class Running:
    """A guard in a thread of its own, because what asks here waits."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self._loop = asyncio.new_event_loop()
        self._url: Future[str] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        self.url = self._url.result(10)
        self.schema = schemathesis.openapi.from_url(f"{self.url}/v1/openapi.json")
        self.http = requests.Session()
        self.errors = 0.0

    async def _serve(self) -> None:
        async with guarded(self.population.sessions, max_wait=0.02, max_body=2**20) as g:
            self._url.set_result(g.server.url)
            await self._end.wait()
            self.errors = g.value("sidecar_guard_errors_total")

    def stop(self) -> None:
        self.http.close()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        self._loop.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    made = Running(Population())
    before = made.population.sessions.engine.dump()
    yield made
    made.stop()
    assert made.errors == 0
    assert made.population.sessions.engine.dump() == before, "asking changed something"


def bounded(examples: int = EXAMPLES) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def call(running: Running, case: Case, checks: list[Any]) -> Any:
    response = case.call_and_validate(base_url=running.url, session=running.http, checks=checks)
    # 503 is for looking at what is being restored; a question is refused instead.
    assert response.status_code < 500 or (response.status_code == 503 and case.method == "GET")
    return response


@pytest.mark.parametrize("route", ASKED, ids=lambda route: route.name)
def test_questions(route: Any, running: Running) -> None:
    said: Counter[str] = Counter()

    @bounded(3 * EXAMPLES)
    @given(case=running.schema[route.path]["POST"].as_strategy(), data=st.data())
    def ask_it(case: Case, data: st.DataObject) -> None:
        case.body = running.population.steer(data.draw, route.name, case.body)
        response = call(running, case, CONFORMANCE)
        answer = response.json()
        if response.status_code == 200:
            wrong = running.population.wrongly_said_yes(route.name, case.body, answer)
            assert wrong is None, (wrong, case.body, answer)
        said[str(answer.get("allowed", answer.get("decision")))] += 1

    ask_it()
    yes = {"authorize": "True", "resume": "resume", "commit": "commit", "gc": "reclaim"}[route.name]
    assert said[yes] >= 1 and said.total() - said[yes] >= 20, said


@pytest.mark.parametrize("route", ASKED, ids=lambda route: route.name)
def test_what_is_no_question(route: Any, running: Running) -> None:
    @bounded()
    @given(case=running.schema[route.path]["POST"].as_strategy(GenerationMode.NEGATIVE))
    def ask_it(case: Case) -> None:
        if route.name != "commit":
            response = call(running, case, [*CONFORMANCE, negative_data_rejection])
            assert response.json()["reasons"]
            return
        # What a summary is, the protocol says; some of it no schema can: beside a `seq`, `as_of_seq` may be anything.
        response = call(running, case, CONFORMANCE)
        answer = response.json()
        if response.status_code != 200:
            assert answer["reasons"] and answer["decision"] == "halt"
            return
        assert isinstance(case.body, dict)
        read(json.dumps({"kind": "summary", **case.body}).encode())  # raises for what the protocol does not take
        least = case.body.get("min_seq")
        assert least is None or (type(least) is int and least >= 0)

    ask_it()


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "GET"], ids=lambda route: route.name)
def test_looking(route: Any, running: Running) -> None:
    modes = [GenerationMode.POSITIVE] + [GenerationMode.NEGATIVE] * (route.name == "findings")
    shown: Counter[int] = Counter()
    for mode in modes:

        @bounded()
        @given(case=running.schema[route.path]["GET"].as_strategy(mode), data=st.data())
        def look(case: Case, data: st.DataObject) -> None:
            if case.path_parameters and data.draw(st.integers(0, 2)):
                session_id = data.draw(st.sampled_from(running.population.ids))
                checkpoints = running.population.checkpoints.get(session_id) or ["nothing"]
                known = {"session_id": [session_id], "rule": [*CATALOGUE], "checkpoint_id": checkpoints}
                for name in case.path_parameters:
                    case.path_parameters[name] = quote(data.draw(st.sampled_from(known[name])), safe="")
            shown[call(running, case, CONFORMANCE).status_code] += 1

        look()
    assert shown[200] >= (1 if route.name == "openapi" else 5), shown


def test_permission_is_given_where_it_is_due(running: Running) -> None:
    """Ask for every action in every session: of a log that came whole, the naive judge and the guard agree."""
    given_to: Counter[bool] = Counter()
    for number, session_id in enumerate(running.population.lines):
        if session_id not in running.population.known:
            continue
        verdict = judge(running.population.lines[session_id]).sessions[0]
        well = is_well(verdict)
        for action in ACTIONS:
            question = {"session_id": session_id, "action_id": action}
            answer = running.http.post(f"{running.url}/v1/authorize", json=question).json()
            position = answer["position"]
            row = {"kind": "action", "seq": position + 1, "irreversible": True, **question}
            found = running.population.would_find(session_id, row)
            due = well and not {rule for rule, _ in found} - {"stale_on_authorization"}  # a last use is permitted
            assert due or not answer["allowed"]
            if number % 3 and verdict["status"] != "unverified":  # (a hole after the grant is no rule of the judge's)
                assert due == answer["allowed"], (question, answer)
            given_to[answer["allowed"]] += 1
    assert min(given_to.values()) > 10, given_to
