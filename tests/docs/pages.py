"""The documents, as what can be tested of them: blocks, code in the text, links, headings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COMPOSE = "deploy/compose.yaml"


class Block(NamedTuple):
    """Hold a block of code: where it stands, under which heading and comment (`<!-- kind: name -->`), and its text."""

    page: str
    line: int
    language: str
    heading: str
    comment: str
    text: str

    @property
    def where(self) -> str:
        """Return where it stands, for people."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Return its lines as a shell takes them: comments dropped, continued lines joined, a console's behind `$`.

        What a command writes (in a block of the language `console`) is left out.
        """
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [found for line in lines if (found := re.sub(r"(^|\s+)#( .*)?$", "", line).strip())]


class Page(NamedTuple):
    """Hold a document; `name` is its path."""

    name: str
    text: str

    @property
    def path(self) -> Path:
        """Return where it is."""
        return ROOT / self.name

    @property
    def prose(self) -> str:
        """Return the text without its blocks and comments, line for line."""
        return re.sub(_BLOCK.pattern + r"|<!--.*?-->", _emptied, self.text, flags=re.M | re.S)

    def blocks(self) -> Iterator[Block]:
        """Yield its blocks in order."""
        for found in _BLOCK.finditer(self.text):
            before = self.text[: found.start()]
            headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", before), re.M)
            comment = re.search(r"<!-- ([^>]*?) -->\s*\Z", before)
            yield Block(
                self.name,
                before.count("\n") + 1,
                found["language"],
                headings[-1] if headings else "",
                comment[1] if comment else "",
                re.sub(rf"^{found['indent']}", "", found["text"], flags=re.M),
            )

    def words(self) -> Iterator[tuple[int, str]]:
        """Yield what stands between backticks in the text, with its line."""
        for found in re.finditer(r"`([^`\n]+(?:\n[^`\n]+)?)`", self.prose):
            yield self.prose.count("\n", 0, found.start()) + 1, " ".join(found[1].split())

    def links(self) -> Iterator[str]:
        """Yield where its links lead."""
        yield from re.findall(r"\]\(([^)\s]+)\)", self.prose)

    def anchors(self) -> set[str]:
        """Return the names of its headings in addresses."""
        found: set[str] = set()
        for heading in re.findall(r"^#+ (.*)$", self.prose, re.M):
            name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            found.add(next(n for n in (name, *(f"{name}-{i}" for i in range(1, 99))) if n not in found))
        return found


_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


def _emptied(found: "re.Match[str]") -> str:
    return "\n" * found[0].count("\n")


def _compose() -> Page:
    """Return the head of the compose file as a document: what is indented there is a block."""
    head = re.match(r"(?:#.*\n)+", (ROOT / COMPOSE).read_text(encoding="utf-8"))
    assert head is not None
    lines = [line[2:] for line in head[0].splitlines()]
    text = ""
    inside = False
    for line in lines:
        indented = line.startswith("  ")
        if indented != inside:
            text += "```\n"
            inside = indented
        text += line[2:] + "\n" if indented else line + "\n"
    return Page(COMPOSE, text + "```\n" * inside)


def pages() -> list[Page]:
    """Return all documents."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    found += [path for folder in ("docs", "grafana", "deploy") for path in sorted((ROOT / folder).rglob("*.md"))]
    return [Page(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in found] + [_compose()]


PAGES = {page.name: page for page in pages()}
BLOCKS = [block for page in PAGES.values() for block in page.blocks()]
