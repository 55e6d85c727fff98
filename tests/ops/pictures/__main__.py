"""Run a sidecar on a simulated fleet for a while, and draw every dashboard with what Prometheus then knows.

Drawn with Grafana's components in headless Chromium; draw.tsx says what of it is Grafana's and what is ours. It fetches
some 600 MB from npm the first time, so no test does this.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from sidecar.embedded import EmbeddedBroker
from tests.ops import monitoring, npm
from tests.ops.expressions import DASHBOARDS, filled, load, panels
from tests.ops.monitoring import Stack, eventually, get, process, stack

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
POINTS = 300
GARBAGE = b"no record\n"


def main() -> None:
    """Draw them all, in both themes."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--again", action="store_true", help="draw what Prometheus answered the last time")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the fleet runs (%(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    script, styles = _bundle()
    answered = given.folder / "answered.json"
    if not given.again:
        answered.write_text(json.dumps(_run(given.seconds)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for board in json.loads(answered.read_text()):
            for dark in (True, False):
                path = given.folder / f"{board['name']}-{board['state']}-{'dark' if dark else 'light'}.png"
                _draw(browser, script, styles, {**board, "dark": dark}, path)
                print(path)
        browser.close()


def _run(seconds: float) -> list[dict[str, Any]]:
    """Return every dashboard, with what Prometheus answered in each state.

    While nothing had happened (*quiet*), after a while of a fleet with faults (*busy*), of a Prometheus that knows
    nothing of ours (*empty*), of one that knows a tail and no fleet view (*alone*), and with a tail that died (*down*).
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker() as broker,
        stack(broker.bootstrap, "agent.", Path(folder), with_fleet=True) as running,
    ):
        time.sleep(10)
        found = _asked(running, "quiet", 20.0)
        _busy(running, Path(folder), seconds)
        found += _asked(running, "busy", seconds + 20)
        found += _asked(running, "empty", seconds + 20, job="nothing")
        found += _asked(running, "alone", seconds + 20, job="frontier-tail")
        running.processes["sidecar"].kill()
        eventually("its death is told", lambda: "SidecarDown" in running.firing())
        time.sleep(6)
        return found + _asked(running, "down", seconds + 40)


def _bundle() -> tuple[str, str]:
    """Return the script that draws, and the styles for it."""
    installed = npm.installed(HERE, within=600)
    (installed / "draw.tsx").write_text((HERE / "draw.tsx").read_text())
    # Imported from a module proper, the default export of this old package is an object around itself.
    scrollbars = "react-custom-scrollbars-2"
    (installed / "scrollbars.ts").write_text(f'export {{ default }} from "./node_modules/{scrollbars}/lib/index.js";\n')
    options = ["--bundle", "--format=iife", "--jsx=automatic", "--loader:.svg=dataurl", "--loader:.ttf=empty"]
    options += [f"--alias:{scrollbars}={installed / 'scrollbars.ts'}"]
    options += ['--define:process.env.NODE_ENV="production"', "--log-level=error", "--outfile=draw.js"]
    subprocess.run(["node_modules/.bin/esbuild", "draw.tsx", *options], cwd=installed, check=True)
    return (installed / "draw.js").read_text(), (installed / "draw.css").read_text()


def _busy(running: Stack, folder: Path, seconds: float) -> None:
    """Run a fleet with faults, write garbage now and then, and ask the guard all the while."""
    (folder / "garbage.jsonl").write_bytes(GARBAGE * 3)
    rate = ("--rate", "150", "--sessions", "100000", "--agents", "40", "--fault-rate", "0.3", "--seed", "5")
    with process((*monitoring.SIDECAR, "--config", running.config, "simulate", *rate), folder / "simulate.log"):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            running.emit(folder / "garbage.jsonl")
            for n in range(20):
                question = {"session_id": f"s{n}", "action_id": "deploy"}
                get(f"{running.sidecar}/v1/authorize", question)
            time.sleep(2)
    eventually("something fires", running.firing)


def _asked(running: Stack, state: str, seconds: float, job: str = ".*") -> list[dict[str, Any]]:
    """Return what Prometheus answers to every query of every dashboard."""
    found = []
    until = time.time()
    values = {
        "job": job,
        "instance": ".*",
        "window": f"{round(seconds)}s",
        "__rate_interval": "5s",
        "__range": f"{round(seconds)}s",
    }
    for path in DASHBOARDS:
        board = load(path)
        answers = {}
        for panel in panels(board):
            answers[panel["id"]] = [
                running.query(filled(target["expr"], values))
                if target["instant"]
                else running.query_range(filled(target["expr"], values), seconds, seconds / POINTS)
                for target in panel["targets"]
            ]
        found.append(
            {
                "name": path.stem,
                "state": state,
                "board": board,
                "answers": answers,
                "from": until - seconds,
                "to": until,
            }
        )
    return found


def _draw(browser: Browser, script: str, styles: str, given: dict[str, Any], path: Path) -> None:
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1632, "height": 1000})
    page.on("pageerror", lambda error: errors.append(str(error)))
    # A page without an address has no local storage, which the components ask for.
    html = '<!doctype html><meta charset="utf-8"><div id="root"></div>'
    page.route("**/*", lambda route: route.fulfill(body=html if route.request.resource_type == "document" else ""))
    page.goto("http://dashboard.test/")
    page.evaluate("given => { window.given = given }", given)
    page.add_style_tag(content=styles)
    page.add_script_tag(content=script)
    page.wait_for_timeout(1000)
    page.screenshot(path=path, full_page=True)
    page.close()
    for error in errors:
        print(f"{path.name}: {error[:500]}", file=sys.stderr)


if __name__ == "__main__":
    main()
