"""Find the programs of Prometheus that Debian brings."""

import shutil

from tests.conftest import missing

PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


def tool(name: str) -> str:
    """Return the path of a program; without it the test is skipped, or fails where everything must be there."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed (Debian: apt-get install {PACKAGES.get(name, name)}).")
    return found
