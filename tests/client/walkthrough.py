"""Live the walk-through on Apache Kafka, and put what comes out into docs/walkthrough.md.

python -m tests.client.walkthrough    write the document anew
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from sidecar.embedded import free_port
from tests.kafka.broker import KafkaBroker
from tests.kafka.support import read_topic
from tests.kafka.tail_support import settings_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walkthrough.md"
AGENT = ROOT / "docs" / "examples" / "walkthrough_agent.py"
LIVES = ("first", "second", "third")
KILLED = -9
WITHIN = 60


def live(bootstrap: str, unique: str, folder: Path) -> dict[str, str]:
    """Run the tail and the agent's lives, each as a process; return what came out, by the name of its block."""
    settings = settings_for(bootstrap, unique)
    config = folder / "sidecar.json"
    config.write_text(settings.model_dump_json())
    address = f"127.0.0.1:{free_port()}"
    out: dict[str, str] = {}
    with (folder / "tail.log").open("wb") as errors:
        tail = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "--config", str(config), "run", "--http", address],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        try:
            wait_until_ready(tail, address)
            command = [sys.executable, str(AGENT), "--state", str(folder / "agent"), "--kafka", bootstrap]
            command += ["--guard", f"http://{address}", "--topics", unique]
            for name in LIVES:
                life = subprocess.run([*command, name], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN)
                expected = 0 if name == LIVES[-1] else KILLED
                if life.returncode != expected:
                    raise RuntimeError(f"the {name} life ended with {life.returncode}:\n{life.stdout}\n{life.stderr}")
                out[name] = life.stdout
        finally:
            tail.terminate()
            tail.wait(WITHIN)
    acks = asyncio.run(read_topic(bootstrap, settings.topics.halt_acks))
    out["acks"] = "".join(f"{(record.value or b'').decode()}\n" for record in acks)
    return normalized(out)


def wait_until_ready(tail: "subprocess.Popen[bytes]", address: str) -> None:
    """Wait until the tail answers that it is ready."""
    import time
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline and tail.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RuntimeError(f"the tail was not ready in time; exit status {tail.poll()}")


_VOLATILE = {
    "checkpoint": re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    "halt": re.compile(r"\b[0-9a-f]{16,64}\b"),
}
"""Ids that are others in every run: LangGraph's of checkpoints, and what the sidecar hashes them into."""


def normalized(out: dict[str, str]) -> dict[str, str]:
    """Number what is volatile in the order in which it comes up: `checkpoint-1`, `halt-1`, …."""
    names: dict[str, str] = {}
    counts = dict.fromkeys(_VOLATILE, 0)

    def name(kind: str, found: str) -> str:
        if found not in names:
            counts[kind] += 1
            names[found] = f"{kind}-{counts[kind]}"
        return names[found]

    for block, text in out.items():
        for kind, pattern in _VOLATILE.items():
            text = pattern.sub(lambda match, kind=kind: name(kind, match[0]), text)
        out[block] = text
    return out


_OUTPUT = re.compile(r"(<!-- output: (\w+) -->\n```text\n)(.*?)(```\n)", re.DOTALL)
_CODE = re.compile(r"(<!-- code: ([\w ]+) -->\n```python\n)(.*?)(```\n)", re.DOTALL)


def shown(page: str) -> dict[str, str]:
    """Return the outputs that the document shows."""
    return {name: text for _, name, text, _ in _OUTPUT.findall(page)}


def quoted(page: str) -> dict[str, str]:
    """Return the code that the document quotes."""
    return {name: text for _, name, text, _ in _CODE.findall(page)}


def sections() -> dict[str, str]:
    """Return the agent's source by section; a section begins with a line `# --- NAME ---`."""
    parts = re.split(r"^# --- (.+) ---\n", AGENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text.strip("\n") + "\n" for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def written(page: str, out: dict[str, str]) -> str:
    """Return the document with these outputs, and with the agent's source as it is."""
    code = sections()
    page = _OUTPUT.sub(lambda found: f"{found[1]}{out[found[2]]}{found[4]}", page)
    return _CODE.sub(lambda found: f"{found[1]}{code[found[2]]}{found[4]}", page)


def main() -> None:
    """Write the document anew."""
    with tempfile.TemporaryDirectory() as folder, KafkaBroker(Path(folder) / "kafka") as broker:
        out = live(broker.bootstrap, "walk.", Path(folder))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), out), encoding="utf-8")


if __name__ == "__main__":
    main()
