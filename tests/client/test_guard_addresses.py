"""Whom the guard's client asks, and whom it shows the token: owners, tokens, TLS."""

import ssl
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.client.addresses import Owners, Unfit, is_loopback, parse, shows_secrets
from sidecar.client.guard import Guard, GuardError
from sidecar.protocol.api import AuthorizeAnswer, Problem, Reason
from tests.client.guards import FakeGuard, refuse, yes
from tests.conftest import missing

LOCAL = ["127.0.0.1"]


def owned_by(url: str | None) -> AuthorizeAnswer:
    """Say that somebody else has the session."""
    answer = refuse("not_owned", "Another replica has the session.")
    answer.owner = url
    return answer


def passing_on(to: Callable[[], str | None]) -> FakeGuard:
    """Return a guard that has no session and names an owner."""
    return FakeGuard(lambda request, asked: (421, owned_by(to())))


# --- owners -----------------------------------------------------------------------------------------------------------


async def test_the_owner_is_asked_and_remembered() -> None:
    async with (
        FakeGuard().serving() as owner,
        passing_on(lambda: owner.url).serving() as first,
        Guard(first.url, owner_hosts=LOCAL) as guard,
    ):
        assert (await guard.authorize("s", "deploy")).allowed
        assert (await guard.authorize("s", "deploy")).allowed
        assert (await guard.authorize("t", "deploy")).allowed
    assert [asked["session_id"] for asked in first.asked] == ["s", "t"]
    assert [asked["session_id"] for asked in owner.asked] == ["s", "s", "t"]


async def test_looking_follows_the_owner_too() -> None:
    gone = Problem(reasons=[Reason(code="unknown_session", detail="unknown")])
    async with FakeGuard(lambda request, asked: (404, gone)).serving() as owner:
        elsewhere = Problem(reasons=[Reason(code="not_owned", detail="not here")], owner=owner.url)
        async with (
            FakeGuard(lambda request, asked: (421, elsewhere)).serving() as first,
            Guard(first.url, owner_hosts=LOCAL) as guard,
        ):
            with pytest.raises(GuardError) as caught:
                await guard.session("s")
    assert caught.value.codes == {"unknown_session"}
    assert first.paths == owner.paths == ["/v1/sessions/s"]


@pytest.mark.parametrize("how", ["silent", "another"])
async def test_an_owner_that_has_gone_is_forgotten_and_the_configured_address_asked(how: str) -> None:
    async with AsyncExitStack() as owners, FakeGuard().serving() as second:
        owner = current = await owners.enter_async_context(FakeGuard().serving())
        async with passing_on(lambda: current.url).serving() as first, Guard(first.url, owner_hosts=LOCAL) as guard:
            assert (await guard.authorize("s", "deploy")).allowed
            if how == "silent":
                await owners.aclose()
            else:  # something else has its address
                owner.answering = lambda request, asked: web.Response(text="hello")
            current = second
            assert (await guard.authorize("s", "deploy")).allowed
            assert (await guard.authorize("s", "deploy")).allowed
    assert len(first.asked) == 2
    assert len(second.asked) == 2


async def test_an_owner_that_gives_a_session_away_is_forgotten() -> None:
    async with FakeGuard().serving() as second, FakeGuard().serving() as owner:
        current = [owner]
        async with passing_on(lambda: current[0].url).serving() as first, Guard(first.url, owner_hosts=LOCAL) as guard:
            assert (await guard.authorize("s", "deploy")).allowed
            owner.answering = lambda request, asked: (421, owned_by(None))
            current[0] = second
            assert (await guard.authorize("s", "deploy")).allowed
    assert [len(fake.asked) for fake in (first, owner, second)] == [2, 2, 1]


async def test_an_unreadable_owner_is_not_remembered() -> None:
    async with (
        FakeGuard(lambda request, asked: web.Response(text="hi")).serving() as owner,
        passing_on(lambda: owner.url).serving() as first,
        Guard(first.url, owner_hosts=LOCAL) as guard,
    ):
        for _ in range(2):
            answer = await guard.authorize("s", "deploy")
            assert not answer.allowed
            assert answer.reasons[0].code == "unavailable"
    assert len(first.asked) == 2
    assert len(owner.asked) == 2


async def test_at_most_two_owners_are_asked() -> None:
    async with (
        FakeGuard().serving() as fourth,
        passing_on(lambda: fourth.url).serving() as third,
        passing_on(lambda: third.url).serving() as second,
        passing_on(lambda: second.url).serving() as first,
        Guard(first.url, owner_hosts=LOCAL) as guard,
    ):
        answer = await guard.authorize("s", "deploy")
        assert not answer.allowed
        assert {reason.code for reason in answer.reasons} == {"not_owned"}
        assert "no more are asked" in answer.reasons[-1].detail
        assert [len(fake.asked) for fake in (first, second, third, fourth)] == [1, 1, 1, 0]
        async with Guard(second.url, owner_hosts=LOCAL) as nearer:
            assert (await nearer.authorize("s", "deploy")).allowed


async def test_owners_in_a_circle_end() -> None:
    urls: list[str] = []
    async with (
        passing_on(lambda: urls[1]).serving() as first,
        passing_on(lambda: urls[0]).serving() as second,
        passing_on(lambda: urls[2]).serving() as itself,
    ):
        urls += [first.url, second.url, itself.url]
        for start, asked in ((first, [first, second]), (itself, [itself])):
            async with Guard(start.url, owner_hosts=LOCAL) as guard:
                answer = await guard.authorize("s", "deploy")
            assert not answer.allowed
            assert "asked already" in answer.reasons[-1].detail
            assert [len(fake.asked) for fake in asked] == [1] * len(asked)


@pytest.mark.parametrize(
    "named",
    [
        *(
            "ftp://127.0.0.1/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "//127.0.0.1:1",
            "127.0.0.1:1",
            "http://",
            "",
        ),
        *("http://user:secret@127.0.0.1:1", "http://127.0.0.1:1/?x", "http://127.0.0.1:1/#x", "http://[::1", "\x00"),
        *("http://127.0.0.1:999999", "unix:/run/guard", "http://a b:1/"),
        None,
    ],
)
async def test_what_is_no_address_of_a_guard_is_not_asked(named: str | None) -> None:
    async with passing_on(lambda: named).serving() as first, Guard(first.url, owner_hosts=LOCAL) as guard:
        answer = await guard.authorize("s", "deploy")
    assert not answer.allowed
    assert [reason.code for reason in answer.reasons] == ["not_owned", "not_owned"]
    assert len(first.asked) == 1


@pytest.mark.parametrize("named", [5, [], {"url": "http://127.0.0.1"}, True])
async def test_an_owner_of_another_type_is_none(named: Any) -> None:
    wrong = {"allowed": False, "owner": named, "reasons": []}
    async with (
        FakeGuard(lambda request, asked: (421, wrong)).serving() as first,
        Guard(first.url, owner_hosts=LOCAL) as guard,
    ):
        answer = await guard.authorize("s", "deploy")
    assert not answer.allowed
    assert answer.reasons[0].code == "unavailable"


async def test_a_permission_with_an_owner_beside_is_not_passed_on() -> None:
    async with FakeGuard().serving() as owner:

        def answering(request: web.Request, asked: Any) -> Any:
            answer = yes(request.path, asked)
            answer.owner = owner.url
            return 421, answer

        async with FakeGuard(answering).serving() as first, Guard(first.url, owner_hosts=LOCAL) as guard:
            assert (await guard.authorize("s", "deploy")).allowed  # by the owner
    assert len(owner.asked) == 1


@pytest.mark.parametrize(("hosts", "allowed"), [(None, False), (["127.0.*"], True), (["guard-*"], False), ([], False)])
async def test_only_known_hosts_may_be_named_as_owners(hosts: list[str] | None, allowed: bool) -> None:
    async with (
        FakeGuard().serving() as owner,
        passing_on(lambda: owner.url).serving() as first,
        Guard(first.url, owner_hosts=hosts) as guard,
    ):
        answer = await guard.authorize("s", "deploy")
    assert answer.allowed is allowed
    assert len(owner.asked) == allowed
    assert allowed or "`owner_hosts`" in answer.reasons[-1].detail


def test_so_many_owners_are_remembered_and_no_more() -> None:
    owners = Owners(most=3)
    for n in range(5):
        owners.put(f"s{n}", parse(f"http://127.0.0.1:{n + 1}"))
        owners.get("s0")
    assert len(owners) == 3
    assert owners.get("s0") is not None
    assert owners.get("s1") is None


# --- tokens -----------------------------------------------------------------------------------------------------------


def demanding(token: Callable[[], str]) -> FakeGuard:
    """Return a guard that answers only who shows a token."""

    def answering(request: web.Request, asked: Any) -> Any:
        if request.headers.get("authorization") != f"Bearer {token()}":
            return 401, refuse("unauthorized", "The bearer token is not known.")
        return yes(request.path, asked)

    return FakeGuard(answering)


async def test_a_token_is_shown() -> None:
    async with demanding(lambda: "t0ken").serving() as fake:
        async with Guard(fake.url, token="t0ken") as guard:
            assert (await guard.authorize("s", "deploy")).allowed
        for wrong in ({}, {"token": "other"}):
            async with Guard(fake.url, **wrong) as guard:
                answer = await guard.authorize("s", "deploy")
            assert answer.reasons[0].code == "unauthorized"
    assert len(fake.asked) == 3


async def test_a_token_file_is_read_again_when_the_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("\n first \n")
    wanted = ["first"]
    async with demanding(lambda: wanted[0]).serving() as fake, Guard(fake.url, token_file=file) as guard:
        assert (await guard.authorize("s", "deploy")).allowed
        file.write_text("second\n")
        assert (await guard.authorize("s", "deploy")).allowed  # the file is not read for every question
        wanted[0] = "second"
        assert (await guard.authorize("s", "deploy")).allowed
        assert len(fake.asked) == 4
        wanted[0] = "third"
        assert (await guard.authorize("s", "deploy")).reasons[0].code == "unauthorized"
        assert len(fake.asked) == 5  # the same token is not shown twice


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"caf\xc3\xa9", b"\xff\xfe", b"a\rb"])
async def test_a_token_file_without_a_token_refuses(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    async with FakeGuard().serving() as fake, Guard(fake.url, token_file=file) as guard:
        answer = await guard.authorize("s", "deploy")
    assert not answer.allowed
    assert answer.reasons[0].code == "unavailable"
    assert fake.asked == []


async def test_the_token_goes_to_an_owner_on_loopback() -> None:
    async with (
        demanding(lambda: "t0ken").serving() as owner,
        passing_on(lambda: owner.url).serving() as first,
        Guard(first.url, token="t0ken", owner_hosts=LOCAL) as guard,
    ):
        assert (await guard.authorize("s", "deploy")).allowed


async def test_the_token_goes_nowhere_unencrypted() -> None:
    for named in ("http://192.0.2.1:9464", "http://guard.invalid:9464", "http://127.0.0.1.evil.invalid"):
        async with (
            passing_on(lambda named=named: named).serving() as first,
            Guard(first.url, token="t0ken", owner_hosts=["*"]) as guard,
        ):
            answer = await guard.authorize("s", "deploy")
        assert not answer.allowed
        assert "not sent there unencrypted" in answer.reasons[-1].detail
    with pytest.raises(ValueError, match="unencrypted"):
        Guard("http://192.0.2.1:9464", token="t0ken")
    with pytest.raises(ValueError, match="unencrypted"):
        Guard("http://guard.invalid:9464", token_file="/somewhere")
    for fine in (
        {"url": "http://192.0.2.1:9464"},
        {"url": "http://192.0.2.1:9464", "token": "t0ken", "token_over_http": True},
        {"url": "https://192.0.2.1:9464", "token": "t0ken"},
    ):
        Guard(**fine)


def test_loopback_is_told_by_the_name_alone() -> None:
    for near in ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "localhost.", "[::1]", "[::ffff:127.0.0.1]"):
        assert is_loopback(parse(f"http://{near}:1")), near
    for far in (
        "127.1",
        "0x7f.1",
        "localhost.evil",
        "my.localhost",
        "[::]",
        "0.0.0.0",
        "10.0.0.1",
        "[::ffff:10.0.0.1]",
    ):
        assert not is_loopback(parse(f"http://{far}:1")), far
        assert shows_secrets(parse(f"http://{far}:1"))
        assert not shows_secrets(parse(f"https://{far}:1"))


@pytest.mark.parametrize(
    "options",
    [
        {"url": "127.0.0.1:9464"},
        {"url": "ftp://127.0.0.1"},
        {"url": ""},
        {"url": "http://u:p@127.0.0.1"},
        {"token": "a", "token_file": "b"},
        {"token": ""},
        {"token": "two words"},
        {"token": "new\nline"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"patience": -1},
    ],
)
def test_what_cannot_be_used_is_said_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Guard(**{"url": "http://127.0.0.1:9464", **options})


def test_an_address_may_have_a_path() -> None:
    with pytest.raises(Unfit):
        parse("http://h/?q")
    assert str(parse("http://H:80/guard/")) == "http://h/guard"


async def test_questions_go_below_the_path_of_the_address() -> None:
    async with FakeGuard().serving() as fake, Guard(f"{fake.url}/team/guard/") as guard:
        await guard.authorize("s", "deploy")
    assert fake.paths == ["/team/guard/v1/authorize"]


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeGuard(lambda request, asked: refuse("rule")).serving() as proxy, FakeGuard().serving() as fake:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with Guard(fake.url) as guard:
            assert (await guard.authorize("s", "deploy")).allowed
    assert proxy.asked == []


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an authority (`ca.pem`) and what it signed for a server and a client; and a stranger's (`other.pem`)."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    try:
        for name in ("ca", "other"):
            openssl(
                *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
                *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"),
                *("-addext", "keyUsage=critical,keyCertSign"),
            )
    except FileNotFoundError:
        missing("there is no openssl here")
    for name in ("server", "client"):
        (folder / "extensions").write_text(
            "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        )
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2"),
            *("-extfile", "extensions", "-out", f"{name}.pem"),
        )
    (folder / "both.pem").write_bytes((folder / "client.pem").read_bytes() + (folder / "client.key").read_bytes())
    return folder


def server_context(pki: Path, *, mutual: bool = False) -> ssl.SSLContext:
    """Return what a server needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.pem", pki / "server.key")
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "ca.pem")
    return context


async def test_https_is_verified(pki: Path) -> None:
    async with demanding(lambda: "t0ken").serving(server_context(pki)) as fake:
        ready = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        for verify in (pki / "ca.pem", str(pki / "ca.pem"), ready, False):
            async with Guard(fake.url, verify=verify, token="t0ken") as guard:
                assert (await guard.authorize("s", "deploy")).allowed, verify
        count = len(fake.asked)
        for verify in (True, pki / "other.pem"):
            async with Guard(fake.url, verify=verify, token="t0ken") as guard:
                answer = await guard.authorize("s", "deploy")
            assert not answer.allowed
            assert "CERTIFICATE_VERIFY_FAILED" in answer.reasons[0].detail
        assert len(fake.asked) == count


async def test_mutual_tls(pki: Path) -> None:
    async with FakeGuard().serving(server_context(pki, mutual=True)) as fake:
        for cert in ((pki / "client.pem", pki / "client.key"), pki / "both.pem"):
            async with Guard(fake.url, verify=pki / "ca.pem", cert=cert) as guard:
                assert (await guard.authorize("s", "deploy")).allowed
        async with Guard(fake.url, verify=pki / "ca.pem") as guard:
            answer = await guard.authorize("s", "deploy")
        assert not answer.allowed
        assert answer.reasons[0].code == "unavailable"


async def test_from_https_the_way_does_not_lead_to_http(pki: Path) -> None:
    async with FakeGuard().serving() as plain:
        elsewhere = passing_on(lambda: plain.url)
        async with (
            elsewhere.serving(server_context(pki)) as first,
            Guard(first.url, verify=pki / "ca.pem", owner_hosts=LOCAL) as guard,
        ):
            answer = await guard.authorize("s", "deploy")
        assert not answer.allowed
        assert "from https the way does not lead to http" in answer.reasons[-1].detail
        assert plain.asked == []


async def test_a_certificate_that_anybody_gets_does_not_make_an_owner(pki: Path) -> None:
    loose = ssl.create_default_context(cafile=str(pki / "ca.pem"))
    loose.check_hostname = False
    for verify, allowed in ((pki / "ca.pem", True), (True, False), (False, False), (loose, False)):
        async with (
            FakeGuard().serving(server_context(pki)) as owner,
            passing_on(lambda owner=owner: owner.url).serving() as first,
            Guard(first.url, verify=verify, token="t0ken") as guard,
        ):
            answer = await guard.authorize("s", "deploy")
        assert answer.allowed is allowed, verify
        assert len(owner.asked) == allowed
        assert allowed or "no token is shown" in answer.reasons[-1].detail


async def test_from_http_the_way_may_lead_to_https(pki: Path) -> None:
    async with (
        FakeGuard().serving(server_context(pki)) as owner,
        passing_on(lambda: owner.url).serving() as first,
        Guard(first.url, verify=pki / "ca.pem") as guard,
    ):
        assert (await guard.authorize("s", "deploy")).allowed


def test_files_for_tls_are_looked_at_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"\w"):
        Guard("https://127.0.0.1:1", verify=tmp_path / "none.pem")
    with pytest.raises(OSError, match=r"\w"):
        Guard("https://127.0.0.1:1", cert=tmp_path / "none.pem")
