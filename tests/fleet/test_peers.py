"""Workers ask each other: the token is shown only to hosts that the settings name."""

from pathlib import Path

import pytest

from sidecar.fleet.peers import AskAlerts, PeerError, Peers

STRANGERS = (
    "http://evil.invalid:9465",
    "https://evil.invalid:9465",
    "http://192.0.2.1:9465",
    "http://127.0.0.1.evil.invalid:9465",
    "http://fleet-0@evil.invalid:9465",
    "http://[",
)


@pytest.mark.parametrize("url", STRANGERS)
@pytest.mark.parametrize("hosts", [(), ("fleet-*", "*.fleet.svc")])
async def test_a_stranger_is_not_shown_the_token(tmp_path: Path, url: str, hosts: tuple[str, ...]) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    peers = Peers(0.2, token, hosts=hosts)
    with pytest.raises(PeerError, match="worker_hosts"):
        await peers.ask(url, AskAlerts(open_only=True))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://FLEET-0.invalid:9465"])
async def test_ours_are_asked(tmp_path: Path, url: str) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    peers = Peers(0.2, token, hosts=("Fleet-*",))
    with pytest.raises(PeerError) as caught:
        await peers.ask(url, AskAlerts(open_only=True))
    assert "worker_hosts" not in str(caught.value)
    await peers.close()
