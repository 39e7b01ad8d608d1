"""Staff with permissions, and rows of a user for them to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests.api.conftest import Rows


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada", password="x", email="ada@example.org")


@pytest.fixture
def rows(ada: Any) -> Rows:
    """Ada's thread."""
    return Rows(ada, title="Order 8812")


@pytest.fixture
def staff(agui_runtime: None, django_user_model: Any) -> Callable[..., Client]:
    """Logs a member of staff with permissions of this app in."""

    def make(*permissions: str, name: str = "kim") -> Client:
        user = django_user_model.objects.create_user(name, password="x", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="agui_django", codename__in=permissions)
        assert found.count() == len(permissions)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return make


READER = ("view_run", "view_thread", "view_interrupt", "view_content")


@pytest.fixture
def reader(staff: Callable[..., Client]) -> Client:
    """Reads everything, does nothing."""
    return staff(*READER)
