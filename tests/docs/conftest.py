"""One world for all that the documents say is run."""

from collections.abc import Iterator

import pytest

from tests.docs.world import World, world


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Give the place where the documents' commands are run; whoever takes it is in the group `documents`."""
    with world(tmp_path_factory.mktemp("documents")) as found:
        yield found
