"""Who may ask, over real sockets: loopback, tokens, certificates, and never a web page."""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.config import Settings, SettingsError
from sidecar.guard.access import Access
from sidecar.guard.tls import tls_context
from sidecar.observe.access import MAX_BYTES, TokenFile, is_loopback
from tests.guard.conftest import Certificates
from tests.guard.support import Answer, FakeSessions, Guarded, authorized, guarded
from tests.guard.test_api import QUESTIONS, refused

TOKEN, OTHER = "s3cret-token-one", "s3cret-token-two"
OPEN = ("/metrics", "/healthz", "/readyz", "/")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SIDECAR_"):
            monkeypatch.delenv(name)


def settings(host: str = "127.0.0.1", **guard: Any) -> Settings:
    return Settings.load(None, http=f"[{host}]:0" if ":" in host else f"{host}:0", guard=guard)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def serve(host: str = "127.0.0.1", **guard: Any) -> Any:
    """Serve as the program would, with everything that the settings say."""
    sessions = FakeSessions()
    sessions.fold(*authorized("s"))
    given = settings(host, **guard)
    return guarded(sessions, Access.of(given), host, **given.guard.model_dump())


async def ask(g: Guarded, name: str = "authorize", **options: Any) -> Answer:
    return await g.ask(f"/v1/{name}", QUESTIONS[name], **options)


async def everything_else_is_open(g: Guarded, **options: Any) -> None:
    for path in OPEN:
        async with g.client.get(local(g) + path, **options) as response:
            assert response.status in (200, 503), path


def local(g: Guarded) -> str:
    """Return the address as this machine reaches it, whatever it listens on."""
    return f"{g.server.url.partition(':')[0]}://localhost:{g.server.port}"


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_token_is_needed_where_there_is_a_token_file(host: str, token_file: Path) -> None:
    async with serve(host, token_file=token_file) as g:
        g.server._host = "127.0.0.1"  # what the client connects to
        assert (await ask(g, headers=bearer(TOKEN))).body["allowed"]
        for wrong in ({}, bearer(""), bearer(OTHER), bearer(TOKEN[:-1]), bearer(TOKEN + "x"), bearer(TOKEN.upper()),
                      {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}, bearer("ä")):  # fmt: skip
            for name in QUESTIONS:
                answer = await ask(g, name, headers=wrong)
                refused(name, answer, 401, "unauthorized")
                assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="frontier-sidecar"')
            for path in ("/v1/sessions/s", "/v1/findings", "/v1/rules/log_gap", "/v1/openapi.json", "/v1/nothing"):
                assert (await g.look(path, headers=wrong)).status == 401
        assert (await ask(g, headers={"Authorization": f"bearer  {TOKEN} "})).body["allowed"]
        assert (await g.look("/v1/sessions/s", headers=bearer(TOKEN))).status == 200
        twice = f"POST /v1/authorize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OTHER}\r\n" + (
            f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\n{}"
        )
        assert b" 401 " in (await g.raw(twice.encode())).split(b"\r\n")[0]
        assert g.value("sidecar_guard_refusals_total", code="unauthorized") > 30
        await everything_else_is_open(g)
        assert g.sessions.asked == 5  # nobody else was let near: each permission is looked at twice


def write(path: Path, text: str | None, *, anew: bool = False) -> None:
    """Write a file (None: remove it): in place, or under another name that is then given its own."""
    if text is None:
        path.unlink()
    elif anew:
        path.with_name("new").write_text(text)
        path.with_name("new").replace(path)
    else:
        path.write_text(text)


async def test_tokens_are_replaced_while_it_runs(token_file: Path, logged: io.StringIO) -> None:
    async with serve(token_file=token_file) as g:

        async def who() -> list[bool]:
            return [(await ask(g, headers=bearer(token))).body["allowed"] for token in (TOKEN, OTHER, "")]

        assert await who() == [True, False, False]
        write(token_file, f"{TOKEN}\n\n  {OTHER}  \r\n")  # both, while clients change over
        assert await who() == [True, True, False]
        write(token_file, OTHER, anew=True)
        assert await who() == [False, True, False]
        write(token_file, "")
        assert await who() == [False, False, False]
        write(token_file, None)
        assert await who() == [False, False, False]
        write(token_file, TOKEN)
        assert await who() == [True, False, False]
    text = logged.getvalue()
    assert text.count("nobody is let in") == 1
    assert TOKEN not in text and OTHER not in text


@pytest.mark.parametrize(("age", "again"), [(0.1, True), (60.0, False)])
def test_a_file_that_was_just_written_is_read_again_even_if_it_looks_the_same(
    age: float, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenFile, "_stat", lambda self: (1, 2, 4, 1_000_000_000_000))
    path = tmp_path / "tokens"
    path.write_text("aaaa")
    tokens = TokenFile(path, "guard.token_file", clock=lambda: 1000.0 + age)
    path.write_text("bbbb")
    assert tokens.knows("bbbb") is again


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; put a token on a line of its own"),
        (b" \n\n", "is empty"),
        (b"\xff", "is not UTF-8"),
        (b"good\nnot good\n", "holds no token in line 2"),
        (b"Bearer abc", "holds no token in line 1"),
        (b"a" * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
    ],
)
def test_token_files_that_are_none(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"guard\.token_file: ") as caught:
        Access.of(settings(token_file=path))
    assert says in str(caught.value)
    assert "not good" not in str(caught.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"guard\.token_file: cannot read .*tokens: No such file"):
        Access.of(settings(token_file=tmp_path / "tokens"))


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_open(host: str) -> None:
    assert is_loopback(host)
    Access.of(settings(host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "sidecar.example", "127.1", "localhost.example", "::2"])
def test_any_other_address_needs_a_token_or_certificates(host: str, token_file: Path, logged: io.StringIO) -> None:
    assert not is_loopback(host)
    with pytest.raises(SettingsError) as caught:
        Access.of(settings(host))
    for remedy in ("guard.token_file", "guard.tls_client_ca", "--no-guard"):
        assert remedy in str(caught.value)
    Access.of(settings(host, token_file=token_file))
    assert "unencrypted" in logged.getvalue()


# --- certificates -----------------------------------------------------------------------------------------------------


def tls(certificates: Certificates, **more: Any) -> dict[str, Any]:
    return {"tls_certfile": certificates.cert("server"), "tls_keyfile": certificates.key("server"), **more}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_mutual_tls(host: str, certificates: Certificates) -> None:
    async with serve(host, **tls(certificates, tls_client_ca=certificates.cert("ca"))) as g:
        g.server._host = "127.0.0.1"
        assert g.server.url.startswith("https://")
        for _ in range(2):  # the second time perhaps on a resumed session
            connector = aiohttp.TCPConnector(ssl=certificates.client("client"))
            async with aiohttp.ClientSession(connector=connector) as client:
                g.client, before = client, g.client
                assert (await ask(g)).body["allowed"]
                assert (await g.look("/v1/sessions/s")).status == 200
                g.client = before
        without = certificates.client()
        for name in QUESTIONS:
            refused(name, await ask(g, name, ssl=without), 401, "unauthorized")
        assert (await g.look("/v1/sessions/s", ssl=without)).status == 401
        await everything_else_is_open(g, ssl=without)
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask(g, ssl=certificates.client("intruder"))
        refused("authorize", await ask(g, ssl=without, headers=bearer(TOKEN)), 401, "unauthorized")


async def test_tls_with_a_token_on_any_address(certificates: Certificates, token_file: Path) -> None:
    async with serve("0.0.0.0", **tls(certificates, token_file=token_file)) as g:
        g.server._host = "127.0.0.1"
        context = certificates.client()
        assert (await ask(g, ssl=context, headers=bearer(TOKEN))).body["allowed"]
        refused("authorize", await ask(g, ssl=context), 401, "unauthorized")
        assert b"allowed" not in await g.raw(b"GET /v1/sessions/s HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_both_are_needed_where_both_are_set(certificates: Certificates, token_file: Path) -> None:
    given = tls(certificates, tls_client_ca=certificates.cert("ca"), token_file=token_file)
    async with serve(**given) as g:
        shown = certificates.client("client")
        assert (await ask(g, ssl=shown, headers=bearer(TOKEN))).body["allowed"]
        refused("authorize", await ask(g, ssl=shown), 401, "unauthorized")
        answer = await ask(g, ssl=certificates.client(), headers=bearer(TOKEN))
        refused("authorize", answer, 401, "unauthorized")
        assert "certificate" in answer.body["reasons"][0]["detail"]


def test_tls_alone_lets_nobody_in_from_elsewhere(certificates: Certificates) -> None:
    with pytest.raises(SettingsError, match=r"guard\.token_file"):
        Access.of(settings("0.0.0.0", **tls(certificates)))
    Access.of(settings("127.0.0.1", **tls(certificates)))


async def test_a_client_certificate_that_has_run_out(certificates: Certificates) -> None:
    certificates.issue("late", "ca", "clientAuth", days=-1)
    async with serve(**tls(certificates, tls_client_ca=certificates.cert("ca"))) as g:
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask(g, ssl=certificates.client("late"))


async def test_a_certificate_that_is_renewed(certificates: Certificates, logged: io.StringIO) -> None:
    async with serve(**tls(certificates)) as g:

        async def serial() -> str:
            _, writer = await asyncio.open_connection("127.0.0.1", g.server.port, ssl=certificates.client())
            peer = writer.get_extra_info("peercert")
            writer.close()
            return str(peer["serialNumber"])

        first = await serial()
        kept = certificates.key("server").read_bytes()
        certificates.issue("server", "ca", "serverAuth")
        fits = certificates.key("server").read_bytes()
        certificates.key("server").write_bytes(kept)
        await serial()
        assert await serial() == first  # half of the renewal is not used
        certificates.key("server").write_bytes(fits)
        await serial()
        assert await serial() != first
    assert "going on with the old one" in logged.getvalue()


def test_tls_files_that_are_not_what_they_should_be(certificates: Certificates, tmp_path: Path) -> None:
    def refuses(says: str, **files: Any) -> None:
        with pytest.raises(SettingsError, match=says):
            tls_context(settings(**{**tls(certificates), **files}).guard)

    refuses(r"guard\.tls_certfile: cannot read .*: No such file", tls_certfile=tmp_path / "no.pem")
    refuses(r"guard\.tls_keyfile: cannot read", tls_keyfile=tmp_path)
    refuses(r"guard\.tls_certfile, guard\.tls_keyfile: .* cannot be used", tls_keyfile=certificates.key("client"))
    refuses(r"guard\.tls_certfile, guard\.tls_keyfile: .* and the key in it", tls_keyfile=None)
    refuses(r"guard\.tls_client_ca: .* holds no certificates in PEM", tls_client_ca=certificates.key("ca"))
    both = tmp_path / "both.pem"
    both.write_bytes(certificates.cert("server").read_bytes() + certificates.key("server").read_bytes())
    assert tls_context(settings(tls_certfile=both).guard) is not None
    assert tls_context(settings().guard) is None


# --- web pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Host": "localhost:9464"}, True),
        ({"Host": "LOCALHOST"}, True),
        ({"Host": "localhost."}, True),
        ({"Host": "127.0.0.1:1"}, True),
        ({"Host": "[::1]:9464"}, True),
        ({"Host": "sidecar.example:8443"}, True),  # advertised
        ({"Host": "evil.example"}, False),
        ({"Host": "localhost.evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "localhost@evil.example"}, False),
        ({"Host": "evil.example:80#localhost"}, False),
        ({"Host": "10.0.0.1"}, False),
        ({"Host": "[::1"}, False),
        ({"Host": "user@localhost"}, False),
        ({"Host": "user:password@127.0.0.1:9464"}, False),
        ({"Host": "evil.example@localhost"}, False),
        ({"Host": "localhost/path"}, False),
        ({"Host": "localhost?x"}, False),
        ({"Host": "localhost:99999"}, False),
        ({"Host": "localhost:x"}, False),
        ({"Host": ""}, False),
        ({"Origin": "http://127.0.0.1:{port}"}, True),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, True),
        ({"Origin": "https://sidecar.example:8443"}, True),
        ({"Origin": "http://localhost:9464"}, False),  # what another program on this machine serves
        ({"Host": "localhost:9464", "Origin": "http://localhost:9464"}, False),
        ({"Origin": "http://127.0.0.1"}, False),
        ({"Origin": "https://127.0.0.1:{port}"}, False),
        ({"Origin": "http://localhost:{port}"}, False),  # asked was 127.0.0.1
        ({"Origin": "http://user@127.0.0.1:{port}"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
async def test_web_pages_may_not_ask(headers: dict[str, str], allowed: bool) -> None:
    async with serve(advertise="https://sidecar.example:8443/") as g:
        headers = {name: value.format(port=g.server.port) for name, value in headers.items()}
        for name in QUESTIONS:
            answer = await ask(g, name, headers=headers)
            if allowed:
                assert answer.status == 200
            else:
                refused(name, answer, 403, "unauthorized")
        assert (await ask(g, headers=headers)).body["allowed"] is allowed
        assert (await g.look("/v1/sessions/s", headers=headers)).status == (200 if allowed else 403)
        async with g.client.get(g.server.url + "/metrics", headers=headers) as response:
            assert response.status == 200


async def test_a_page_gets_no_leave_to_ask() -> None:
    async with serve() as g:
        asked = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
        answer = await g.request("OPTIONS", "/v1/authorize", headers=asked)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_a_request_that_names_no_host_or_two() -> None:
    async with serve() as g:
        for host in (b"", b"Host: localhost\r\nHost: localhost\r\n"):
            raw = await g.raw(b"GET /v1/sessions/s HTTP/1.0\r\n" + host + b"\r\n")
            assert raw.split(b" ")[1] in (b"400", b"403"), raw


async def test_elsewhere_any_host_is_good(token_file: Path) -> None:
    async with serve("0.0.0.0", token_file=token_file) as g:
        g.server._host = "127.0.0.1"
        assert (await ask(g, headers={"Host": "sidecar.example", **bearer(TOKEN)})).body["allowed"]
