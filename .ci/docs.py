"""Write the documents that are made from the code; with --check, say which are not what the code says."""

import sys
from collections.abc import Callable
from pathlib import Path

from sidecar.config import reference as settings
from sidecar.engine import rules_text
from sidecar.observe import catalogue as metrics
from sidecar.tail import acls

ROOT = Path(__file__).parent.parent
DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/rules.md": rules_text.catalogue_markdown,
    "docs/configuration.md": settings.reference_markdown,
    "docs/metrics.md": metrics.reference_markdown,
    "deploy/sidecar.yaml": settings.reference_yaml,
    "deploy/kafka/acls.yaml": acls.reference_yaml,
    "deploy/kafka/acls.sh": acls.reference_script,
}


def main() -> int:
    """Return 1 if --check was given and some document differs."""
    check = "--check" in sys.argv
    differing = False
    for name, make in DOCUMENTS.items():
        text = make()
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differing = True
        if check:
            print(f"{name} is not what the code says: run `make docs`")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{name} written")
    return int(check and differing)


if __name__ == "__main__":
    sys.exit(main())
