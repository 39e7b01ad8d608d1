"""The demo site's users: as tools and pages rely on them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import CommandError, call_command
from rest_framework.authtoken.models import Token


@pytest.mark.django_db
def test_users_and_tokens() -> None:
    call_command("agui_demo_data", stdout=StringIO())
    assert {token.key: token.user.username for token in Token.objects.select_related("user")} == {
        "demo-ada": "ada",
        "demo-bob": "bob",
    }
    admin = authenticate(username="admin", password="admin")
    assert admin is not None and admin.is_staff and admin.is_superuser
    for name in ("ada", "bob"):
        user = get_user_model().objects.get(username=name)
        assert not user.is_staff and not user.is_superuser


@pytest.mark.django_db
def test_again_puts_back_what_was_changed() -> None:
    call_command("agui_demo_data", stdout=StringIO())
    ada = get_user_model().objects.get(username="ada")
    Token.objects.filter(user=ada).delete()
    Token.objects.create(user=ada)
    admin = get_user_model().objects.get(username="admin")
    admin.set_password("something else")
    admin.save()
    call_command("agui_demo_data", stdout=StringIO())
    assert Token.objects.get(user=ada).key == "demo-ada"
    assert authenticate(username="admin", password="admin") is not None
    assert get_user_model().objects.count() == 3


@pytest.mark.django_db
def test_refused_in_production(settings) -> None:
    settings.DEMO = False
    with pytest.raises(CommandError, match="AGUI_DEBUG=1"):
        call_command("agui_demo_data")
    assert get_user_model().objects.count() == 0
