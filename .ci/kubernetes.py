"""Build a Kubernetes API server, and the etcd that it needs, for the test that installs the chart on one.

They come from their Go modules, with the Go that is here (1.26 or later): some six minutes on two cores and 2 GB, once,
into a cache outside the checkout. So the test is left out where nobody has done this: `python3 .ci/kubernetes.py`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION, ETCD = "1.36.3", "3.6.16"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frontier-sidecar" / f"kubernetes-{VERSION}"

API_SERVER = """package main

import (
\t"os"

\t"k8s.io/component-base/cli"
\t"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"""
ETCD_SERVER = """package main

import (
\t"os"

\t"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def main() -> int:
    """Build what is missing, and print where it is."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (CACHE / "etcd").exists():
        module = f"module example.test/etcd\n\ngo 1.26\n\nrequire go.etcd.io/etcd/server/v3 v{ETCD}\n"
        build("etcd", module, ETCD_SERVER)
    if not (CACHE / "kube-apiserver").exists():
        # Its own go.mod takes its parts from beside it; they are published under the same version, with 0 for 1.
        parts = sorted(set(re.findall(r"^\t(k8s\.io/[\w-]+) => \./staging", own_module(), re.M)))
        replaced = "".join(f"\t{part} => {part} v0.{VERSION.partition('.')[2]}\n" for part in parts)
        needs = f"require k8s.io/kubernetes v{VERSION}\n\nreplace (\n{replaced})\n"
        build("kube-apiserver", f"module example.test/apiserver\n\ngo 1.26\n\n{needs}", API_SERVER)
    print(CACHE)
    return 0


def own_module() -> str:
    """Return the go.mod of Kubernetes."""
    with tempfile.TemporaryDirectory() as folder:
        done = go(folder, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}", capture=True)
    return Path(json.loads(done)["GoMod"]).read_text(encoding="utf-8")


def build(name: str, module: str, program: str) -> None:
    """Build a program into the cache."""
    version = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    said = f"-X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "go.mod").write_text(module, encoding="utf-8")
        Path(folder, "main.go").write_text(program, encoding="utf-8")
        go(folder, "mod", "tidy")
        go(folder, "build", "-buildvcs=false", "-ldflags", f"-s -w {said}", "-o", str(CACHE / f"{name}.partial"), ".")
    (CACHE / f"{name}.partial").rename(CACHE / name)


def go(folder: str, *arguments: str, capture: bool = False) -> str:
    """Run the go command in a folder."""
    output = subprocess.PIPE if capture else sys.stderr
    return subprocess.run(["go", *arguments], cwd=folder, check=True, text=True, stdout=output).stdout or ""


if __name__ == "__main__":
    sys.exit(main())
