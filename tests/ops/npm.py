"""Install the packages of npm that a folder names, once."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.conftest import missing

CACHE = Path(__file__).parents[2] / ".cache/npm"


def installed(folder: Path, within: float = 180.0) -> Path:
    """Return a folder with `node_modules` as another one says; where npm is missing, skip (or fail).

    Args:
        folder: holds `package.json`, and `package-lock.json` unless what depends on what may differ a little.
        within: seconds that it may take.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing("node and npm are not installed (Debian: apt-get install nodejs npm).")
    files = [path for name in ("package.json", "package-lock.json") if (path := folder / name).exists()]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    made = CACHE / f"{folder.name}-{digest[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{made.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (made / "done").exists():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            for path in files:
                shutil.copy(path, made)
            how = "ci" if len(files) == 2 else "install"
            command = ["npm", how, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=within)
            if done.returncode != 0:
                missing(f"npm could not install what {folder.name}/package.json names: {done.stderr[-500:]}")
            (made / "done").touch()
    return made
