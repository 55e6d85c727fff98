"""The table of what proves each block of the documents: a block that stands in no row fails the tests.

A row says which blocks (of which documents, in which language, how they begin), which test runs or makes them, and,
where a block is not run as it stands, why not and what is tested in its place.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.docs.pages import BLOCKS, COMPOSE, Block

COMMANDS = "tests/docs/test_commands.py::test_it_does_what_the_document_says"
CODE = "tests/docs/test_code.py::test_python_does_what_the_document_says"
SETTINGS = "tests/docs/test_code.py::test_settings_can_be_loaded"
PICTURES = "tests/docs/test_code.py::test_pictures_show_what_there_is"
TEN_MINUTES = "tests/unit/test_ten_minutes.py::test_every_shown_block_is_what_comes_out"
GUARD = "tests/guard/test_docs.py::test_the_examples_are_what_is_answered"
RUNBOOKS = "tests/ops/test_prometheus.py::test_the_runbooks_show_what_is_seen_then"
REPAIR = "tests/ops/test_prometheus.py::test_its_repair_lets_them_sleep"
LIVES = "tests/client/test_walkthrough.py::test_what_is_shown_is_what_comes_out"
QUOTES = "tests/client/test_walkthrough.py::test_what_is_quoted_is_the_program"
HELM = "tests/ops/test_kubernetes.py::test_what_the_document_says_to_helm_is_done"
BOOTED = "tests/ops/test_systemd_booted.py"
IMAGE = "tests/ops/test_release_docs.py::test_the_image_is_built_with_arguments_that_it_takes"
NO_ENGINE = "there is no container engine and no registry of images"
AUDIT = "tests/ops/test_release_docs.py::test_the_commands_of_the_audit_are_understood"


class Proof(NamedTuple):
    """Say what proves the blocks of some documents.

    Args:
        page: the document, or a pattern of names.
        test: what runs the block, makes it, or holds it against what it shows.
        language: of the block; None: any.
        begins: how its text begins.
        comment: how the comment before it begins (`output`, `code`, …).
        heading: what it stands under; empty: anything.
        because: why it is not run as it stands; empty: it is.
    """

    page: str
    test: str
    language: str | None = ""
    begins: str = ""
    comment: str = ""
    heading: str = ""
    because: str = ""

    def covers(self, block: Block) -> bool:
        """Tell whether this is about a block."""
        return (
            fnmatchcase(block.page, self.page)
            and self.language in (None, block.language)
            and block.text.lstrip().startswith(self.begins)
            and block.comment.partition(":")[0] == self.comment
            and self.heading in ("", block.heading)
        )


PROOFS = (
    # What a shell is told is run, each command on its own; what cannot be is told with each in test_commands.py.
    Proof("README.md", COMMANDS, begins="make"),
    Proof("README.md", COMMANDS, begins="sidecar"),
    Proof("README.md", COMMANDS, begins="curl"),
    Proof("CONTRIBUTING.md", COMMANDS),
    Proof("docs/board.md", COMMANDS),
    Proof("docs/fleet.md", COMMANDS),
    Proof("docs/ten-minutes.md", COMMANDS),
    Proof("docs/walkthrough.md", COMMANDS),
    Proof("grafana/README.md", COMMANDS),
    Proof(COMPOSE, COMMANDS),
    # What is shown is made, or compared with what comes out.
    Proof("README.md", "tests/unit/test_readme.py::test_shown_output_is_what_comes_out", comment="output"),
    *(Proof("docs/ten-minutes.md", TEN_MINUTES, None, comment=kind) for kind in ("file", "stdout", "stderr", "output")),
    Proof("docs/ten-minutes.md", TEN_MINUTES, "python", comment="code"),
    Proof("docs/walkthrough.md", LIVES, "text", comment="output"),
    Proof("docs/walkthrough.md", QUOTES, "python", comment="code"),
    Proof("docs/guard.md", GUARD, "json"),
    Proof("docs/guard.md", GUARD, "jsonl"),
    Proof("docs/runbooks/*", RUNBOOKS, "console"),
    # Code of ours is executed.
    Proof("docs/client.md", CODE, "python"),
    Proof(
        "docs/client-guard.md",
        "tests/client/test_guard_irreversible.py::test_the_documents_example_does_what_it_says",
        "python",
    ),
    Proof("docs/langgraph.md", "tests/client/test_langgraph_saver.py::test_the_documents_agent_can_be_made", "python"),
    Proof("docs/guard.md", SETTINGS, "yaml"),
    Proof("docs/runbooks/FrontierDegraded.md", REPAIR, "jsonl"),
    # Operations.
    Proof("docs/deploy.md", COMMANDS, heading="Compose"),
    Proof("docs/deploy.md", HELM, heading="Kubernetes"),
    Proof("docs/deploy.md", HELM, "yaml", heading="Kubernetes"),
    Proof("docs/deploy.md", f"{BOOTED}::test_they_do_on_a_machine_what_the_document_says", begins="python3 -m venv"),
    Proof("docs/deploy.md", f"{BOOTED}::test_they_do_on_a_machine_what_the_document_says", begins="systemctl"),
    Proof("docs/deploy.md", f"{BOOTED}::test_they_do_on_a_machine_what_the_document_says", begins="(umask"),
    Proof("docs/deploy.md", IMAGE, heading="The image", because=NO_ENGINE),
    Proof("docs/releasing.md", IMAGE, heading="Steps", because=NO_ENGINE),
    Proof("docs/releasing.md", AUDIT, heading="The audit", because="it asks a service that CI does not reach"),
    Proof(
        "docs/security.md",
        "tests/ops/test_release_docs.py::test_the_permissions_are_printed_as_the_document_asks",
        begins="sidecar acls",
    ),
    Proof("docs/security.md", "tests/ops/test_acl.py::test_each_one_that_the_tail_lacks_is_named", begins="Grant"),
    Proof("docs/security.md", SETTINGS, begins="SIDECAR_"),
    Proof("docs/runbooks/*", COMMANDS, "sh"),
    # Pictures of what there is.
    Proof("README.md", PICTURES, begins="agents"),
    Proof("docs/architecture.md", PICTURES),
)


def proofs_of(block: Block) -> list[Proof]:
    """Return the rows that are about a block."""
    return [proof for proof in PROOFS if proof.covers(block)]


def blocks_of(test: str) -> Iterator[Block]:
    """Yield the blocks that a test is there for."""
    for block in BLOCKS:
        if any(proof.test == test for proof in proofs_of(block)):
            yield block
