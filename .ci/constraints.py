"""Print the versions that uv.lock (standard input) names, as constraints for pip."""

import sys
import tomllib
from collections import defaultdict


def main() -> None:
    """Print one line per package; one with different versions for different machines is left free."""
    versions = defaultdict(set)
    for package in tomllib.load(sys.stdin.buffer)["package"]:
        if "registry" in package["source"]:
            versions[package["name"]].add(package["version"])
    for name, found in sorted(versions.items()):
        if len(found) == 1:
            print(f"{name}=={found.pop()}")


if __name__ == "__main__":
    main()
