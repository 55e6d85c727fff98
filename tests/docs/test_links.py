"""Links lead to files and headings that are there."""

import pytest

from tests.docs.pages import PAGES, ROOT, Page


def _broken(page: Page) -> list[str]:
    wrong = []
    for link in page.links():
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        known = PAGES.get(str(target.relative_to(ROOT))) if target.is_relative_to(ROOT) else None
        if not target.exists() or (anchor and (known is None or anchor not in known.anchors())):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_links_lead_somewhere(page: Page) -> None:
    assert _broken(page) == []


def test_links_that_lead_nowhere_are_noticed() -> None:
    links = "[a](#two-words) [b](#one-1) [c](#three) [d](none.md) [e](rules.md#none)"
    text = f"# One\n\n## Two: `words`\n\n## One\n\n{links}\n"
    page = Page("docs/new.md", text)
    assert page.anchors() == {"one", "two-words", "one-1"}
    PAGES["docs/new.md"] = page
    try:
        # It is no file, so that its own headings cannot be reached either.
        assert _broken(page) == ["#two-words", "#one-1", "#three", "none.md", "rules.md#none"]
    finally:
        del PAGES["docs/new.md"]


def test_each_document_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), ["README.md"]
    while todo:
        page = PAGES[todo.pop()]
        reached.add(page.name)
        for link in page.links():
            target = (page.path.parent / link.partition("#")[0]).resolve()
            if "://" not in link and target.is_dir():
                found = [str(path.relative_to(ROOT)) for path in target.glob("*.md")]
            else:
                found = [str(target.relative_to(ROOT))] if target.is_relative_to(ROOT) else []
            todo += [name for name in found if name in PAGES and name not in reached]
    assert PAGES.keys() <= reached, "nobody finds these"
