"""Print what the package of a pyproject.toml (standard input) needs, with the extras that are named."""

import sys
import tomllib


def main() -> None:
    """Print one requirement a line, as pip reads them."""
    project = tomllib.load(sys.stdin.buffer)["project"]
    print("\n".join(project["dependencies"]))
    for extra in sys.argv[1:]:
        print("\n".join(project["optional-dependencies"][extra]))


if __name__ == "__main__":
    main()
