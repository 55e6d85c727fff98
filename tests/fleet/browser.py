"""The browser that the page is tried in: the system's Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
"""Where it is; empty: there is none."""


@contextmanager
def launch(playwright: Playwright) -> Iterator[Browser]:
    """Start it; playwright brings none of its own."""
    # Without a sandbox, because tests run as root in containers; nothing foreign is loaded.
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    )
    try:
        yield browser
    finally:
        browser.close()
