"""The rules share the parsed sources, and drop them at the end."""

from collections.abc import Iterator

import pytest

from tests.architecture.sources import forget


@pytest.fixture(autouse=True, scope="package")
def parsed_sources() -> Iterator[None]:
    """Keep what is parsed for this folder's tests alone."""
    yield
    forget()
