"""Tokens that are bound to tenants, questions that must name `min_seq`, and questions that say a thing twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import SettingsError
from sidecar.guard import api
from sidecar.guard.access import Access
from sidecar.observe.access import TokenFile
from tests.guard.support import LOOPBACK, Answer, FakeSessions, guarded
from tests.guard.test_api import QUESTIONS, refused, session

JSON = {"Content-Type": "application/json"}
YES: dict[str, dict[str, Any]] = {**QUESTIONS, "commit": {**QUESTIONS["commit"], "generation": 2}}


def owned(session_id: str, tenant: str | None) -> list[dict[str, Any]]:
    named = {} if tenant is None else {"tenant": tenant}
    probed = {"kind": "probe", "node_id": "n", "probes": 10, "recalled": 10}
    return [{**row, **named, "session_id": session_id} for row in [*session(), {**probed, "seq": 5}]]


@pytest.fixture
def access(tmp_path: Path) -> Access:
    path = tmp_path / "tokens"
    path.write_text("all-of-it\nacme-only tenants=acme name=acme\ntwo-of-them tenants=acme,b%2Cc%20d\n")
    return Access(tokens=TokenFile(path, "guard.token_file", tenants=True), hosts=LOOPBACK)


def population() -> FakeSessions:
    sessions = FakeSessions()
    for tenant in ("acme", "b,c d", "globex", None):
        outcome = sessions.fold(*owned(f"of {tenant}", tenant))
        assert not outcome.findings
    return sessions


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def without_ids(answer: Answer) -> Any:
    """Return all of an answer but the ids that it repeats."""
    text = repr((answer.status, answer.body, sorted(answer.headers.keys() - {"Content-Length", "Date"})))
    for name in ("of globex", "of None", "of b,c d", "nobody"):
        text = text.replace(name, "ID")
    return text


@pytest.mark.parametrize(
    ("token", "sees"),
    [
        ("all-of-it", ["of acme", "of b,c d", "of globex", "of None"]),
        ("acme-only", ["of acme"]),
        ("two-of-them", ["of acme", "of b,c d"]),
    ],
)
async def test_a_token_is_for_the_sessions_of_its_tenants(token: str, sees: list[str], access: Access) -> None:
    async with guarded(population(), access, max_wait=0.2) as g:
        for session_id in ("of acme", "of b,c d", "of globex", "of None"):
            for name, question in YES.items():
                for least in ({}, {"min_seq": 1}):
                    asked = {**question, "session_id": session_id, **least}
                    answer = await g.ask(f"/v1/{name}", asked, headers=bearer(token))
                    if session_id in sees:
                        assert not {r["code"] for r in answer.body["reasons"]} & {"unknown_session", "not_applied"}
                        continue
                    missing = await g.ask(f"/v1/{name}", {**asked, "session_id": "nobody"}, headers=bearer(token))
                    refused(name, answer, 200, "not_applied" if least else "unknown_session")
                    assert without_ids(answer) == without_ids(missing)
            quoted = session_id.replace(" ", "%20")
            for path in ("/v1/sessions/ID", "/v1/sessions/ID/checkpoints/c", "/v1/findings?session=ID"):
                answer = await g.look(path.replace("ID", quoted), headers=bearer(token))
                missing = await g.look(path.replace("ID", "nobody"), headers=bearer(token))
                assert answer.status == (200 if session_id in sees else 404), (path, session_id)
                if session_id not in sees:
                    assert without_ids(answer) == without_ids(missing)
        assert not [d for d in g.decisions.written if d.session_id not in sees]


async def test_another_tenant_s_findings_are_not_listed(access: Access) -> None:
    async with guarded(population(), access) as g:
        acted = {"kind": "action", "seq": 6, "action_id": "x", "irreversible": True, "session_id": "of globex"}
        g.guard.note(g.sessions.fold(acted))
        assert len((await g.look("/v1/findings", headers=bearer("all-of-it"))).body["findings"]) == 1
        answer = await g.look("/v1/findings", headers=bearer("acme-only"))
        assert answer.status == 403
        assert "globex" not in str(answer)
        assert (await g.look("/v1/findings?session=of%20globex", headers=bearer("acme-only"))).status == 404


async def test_time_does_not_tell_whether_a_session_is_another_tenant_s(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make looking at a session slow, as a large one that sleeps is: whoever may not know of it notices nothing."""
    monkeypatch.setattr(api, "_UNKNOWN_SECONDS", 0.3)
    sessions = population()
    look = sessions.engine.look

    def slow(session_id: str) -> Any:
        found = look(session_id)
        if found is not None:
            time.sleep(0.15)
        return found

    monkeypatch.setattr(sessions.engine, "look", slow)
    async with guarded(sessions, access) as g:

        async def took(session_id: str) -> float:
            began = asyncio.get_running_loop().time()
            asked = {"session_id": session_id, "action_id": "deploy"}
            await g.ask("/v1/authorize", asked, headers=bearer("acme-only"))
            return asyncio.get_running_loop().time() - began

        await took("nobody")
        assert abs(await took("of globex") - await took("nobody")) < 0.1


async def test_a_session_whose_tenant_is_not_known_yet_opens_up_with_the_first_record_that_names_it(
    access: Access,
) -> None:
    async with guarded(population(), access) as g:
        asked = {"session_id": "of None", "action_id": "deploy"}
        refused("authorize", await g.ask("/v1/authorize", asked, headers=bearer("acme-only")), 200, "unknown_session")
        g.sessions.fold({"kind": "message", "session_id": "of None", "seq": 6, "tenant": "acme"})
        assert (await g.ask("/v1/authorize", asked, headers=bearer("acme-only"))).body["allowed"]


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("good tenants=", "in line 1"),
        ("good\ngood2 tenants=a,,b", "an empty tenant in line 2"),
        ("good tenants=a tenants=b", "in line 1, after the token"),
        ("good tenant=a", "in line 1, after the token"),
        ("good scope=a", "in line 1, after the token"),
        ("good name=", "in line 1, after the token"),
        ("good a", "holds no token in line 1"),
        ("good tenants=%ff", "is not UTF-8"),
        ("good tenants=a\ngood", "holds the token of line 2 twice"),
        ("good\ngood tenants=a", "holds the token of line 2 twice"),
        ("good tenants=a\ngood tenants=b", "holds the token of line 2 twice"),
    ],
)
def test_a_line_that_cannot_be_understood_opens_nothing(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        TokenFile(path, "guard.token_file", tenants=True)
    assert says in str(caught.value)
    assert "good" not in str(caught.value)
    # Likewise while it runs.
    path.write_text("good")
    tokens = TokenFile(path, "guard.token_file", tenants=True)
    assert tokens.knows("good")
    path.write_text(content)
    assert not tokens.knows("good") and not tokens.knows("good2")


def test_where_nothing_holds_to_tenants_a_bound_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("one name=x\ntwo tenants=a\n")
    with pytest.raises(SettingsError, match=r"fleet\.token_file: .* binds the token in line 2 to tenants"):
        TokenFile(path, "fleet.token_file")
    path.write_text("one name=x\n")
    assert TokenFile(path, "fleet.token_file").knows("one")


# --- min_seq ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", YES)
async def test_min_seq_can_be_made_mandatory(name: str) -> None:
    async with guarded(population(), require_min_seq=True) as g:
        asked = {**YES[name], "session_id": "of acme"}
        for least in ({}, {"min_seq": None}, {"min_seq": 0}):
            answer = await g.ask(f"/v1/{name}", {**asked, **least})
            refused(name, answer, 400, "bad_request")
            assert "guard.require_min_seq" in answer.body["reasons"][0]["detail"]
        answer = await g.ask(f"/v1/{name}", {**asked, "min_seq": 5})
        assert (answer.status, answer.body["reasons"]) == (200, [])
        assert len(g.decisions.written) == 1


# --- the same key twice -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "body", "key"),
    [
        ("authorize", b'{"session_id":"of acme","action_id":"x","action_id":"deploy"}', "action_id"),
        ("authorize", b'{"session_id":"of globex","action_id":"deploy","session_id":"of acme"}', "session_id"),
        ("authorize", b'{"session_id":"of acme","action_id":"deploy","action_\\u0069d":"deploy"}', "action_id"),
        ("authorize", b'{"session_id":"of acme","action_id":"deploy","min_seq":9,"min_seq":null}', "min_seq"),
        ("resume", b'{"session_id":"of acme","checkpoint_id":"d","checkpoint_id":"c"}', "checkpoint_id"),
        ("gc", b'{"session_id":"of acme","node_ids":["x"],"node_ids":["n"]}', "node_ids"),
        ("commit", b'{"session_id":"of acme","node_id":"n","generation":1,"generation":2,"level":1,"frontier_lo":1,'
         b'"frontier_hi":2}', "generation"),
        ("commit", b'{"session_id":"of acme","node_id":"n","generation":2,"level":1,"frontier_lo":1,'
         b'"frontier_hi":2,"facts":{"f":"a","f":"b"}}', "f"),
        ("commit", b'{"session_id":"of acme","node_id":"n","generation":2,"level":1,"frontier_lo":1,'
         b'"frontier_hi":2,"unknown":[{"x":{"y":1,"y":1}}]}', "y"),
    ],
)  # fmt: skip
async def test_what_is_said_twice_is_no_question(name: str, body: bytes, key: str) -> None:
    async with guarded(population()) as g:
        answer = await g.ask(f"/v1/{name}", body, headers=JSON)
        refused(name, answer, 400, "bad_request")
        assert f"`{key}` is given twice" in answer.body["reasons"][0]["detail"]
        assert g.decisions.written == []
