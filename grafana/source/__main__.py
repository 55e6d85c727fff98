"""Write the dashboards, the alert rules and the provisioning files."""

import argparse
from pathlib import Path

from grafana.source.files import ROOT, write
from grafana.source.rules import DOCS


def main() -> None:
    """Write what differs, and name it."""
    parser = argparse.ArgumentParser(prog="python -m grafana.source", description=__doc__)
    parser.add_argument("--docs", default=DOCS, help="where docs/ can be read, for links there (none)")
    parser.add_argument("--out", type=Path, default=ROOT, help="the folder to write to (this repository)")
    given = parser.parse_args()
    for name in write(given.docs, given.out):
        print(f"{name} written")


if __name__ == "__main__":
    main()
