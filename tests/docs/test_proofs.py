"""Every block of every document is run, made or compared by a test that there is."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import BLOCKS, PAGES, ROOT, Block, Page
from tests.docs.proofs import PROOFS, Proof, blocks_of, proofs_of


def _tests(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


def _sources(file: Path) -> str:
    """Return a test module's text, with that of the modules beside it that it uses."""
    text = file.read_text(encoding="utf-8")
    found = {path for path in file.parent.glob("*.py") if re.search(rf"\b{path.stem}\b", text)}
    return text + "".join(path.read_text(encoding="utf-8") for path in sorted(found))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_each_block_is_proved_once(block: Block) -> None:
    found = proofs_of(block)
    assert len(found) == 1, f"{block.where} needs one row in tests/docs/proofs.py, and has {found}\n{block.text}"


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: f"{proof.page} {proof.begins or proof.language}")
def test_each_proof_has_its_blocks_and_its_test(proof: Proof) -> None:
    blocks = [block for block in BLOCKS if proof.covers(block)]
    assert blocks, "nothing is like that any more"
    file, _, name = proof.test.partition("::")
    assert (ROOT / file).is_file(), file
    assert name in _tests(ROOT / file), f"{file} has no {name}"
    if file.startswith("tests/docs/"):
        assert re.search(r"blocks_of\(|PAGES.values\(\)", (ROOT / file).read_text(encoding="utf-8"))
        return
    for page in {Path(block.page) for block in blocks}:
        names = (page.name, f'"{page.stem}"', f'/{page.parent.name}"')
        assert any(name in _sources(ROOT / file) for name in names), f"{file} does not look at {page}"


def test_what_is_not_said_is_noticed() -> None:
    page = Page("docs/new.md", "# New\n\n```\nsidecar new\n```\n\n1. First\n\n   ```python\n   new()\n   ```\n")
    shell, python = page.blocks()
    assert (shell.line, shell.heading, shell.commands) == (3, "New", ["sidecar new"])
    assert (python.language, python.text) == ("python", "new()\n")
    assert not proofs_of(shell) and not proofs_of(python)


def test_commands_are_read_as_a_shell_reads_them() -> None:
    text = "```\n# first\na b # c\nd '#e' \\\n   f\n```\n\n```console\n$ g | h\ni\n```\n"
    shell, console = Page("docs/new.md", text).blocks()
    assert shell.commands == ["a b", "d '#e' f"]
    assert console.commands == ["g | h"]


def test_all_blocks_are_seen() -> None:
    """A fence that is not understood must not take what follows it out of the tests."""
    for page in PAGES.values():
        fences = len(re.findall(r"^ *```", page.text, re.M))
        assert fences == 2 * len(list(page.blocks())), page.name
        assert "~~~" not in page.text


def test_each_block_is_handed_to_its_test() -> None:
    assert {block.where for proof in PROOFS for block in blocks_of(proof.test)} == {block.where for block in BLOCKS}
