"""The store's tests run our own threads: a real database file or server, and nothing left of them afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth import get_user_model

from agui_django.runs import recorder
from agui_django.runs.database import get_pool
from tests.runs.given import Given


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    """A user, and the store as they use it; the pool's threads and connections are gone afterwards."""
    ada = get_user_model().objects.create_user("ada")
    yield Given(ada)
    get_pool().close_sync()
    assert not recorder.recorders, "a recorder outlived its test"
