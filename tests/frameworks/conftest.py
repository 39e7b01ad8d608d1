"""The world that the frameworks' stories are told in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.live import LiveServer

pytest.register_assert_rewrite("tests.frameworks.stories")


@pytest.fixture
def world(server: LiveServer, ada: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ada's client of a live server."""
    from tests.frameworks.world import World

    if request.node.originalname == "test_official_client":
        request.getfixturevalue("node")
    with ExitStack() as stack:
        yield World(server, ada, stack)


@pytest.fixture
def node() -> None:
    """Node, with the official clients."""
    from tests.parts import require

    require("clients")
