"""Makes the demo site's users: ada and bob with known tokens, and admin. Safe to run again; refuses without DEBUG."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from rest_framework.authtoken.models import Token


class Command(BaseCommand):
    """``manage.py agui_demo_data``."""

    help = "Makes the users ada and bob (tokens demo-ada, demo-bob) and admin (password admin). DEBUG only."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Make what is missing, and put the known tokens and passwords back."""
        if not settings.DEMO:
            raise CommandError("Well-known passwords and tokens are for the demo only: set AGUI_DEBUG=1.")
        users = get_user_model().objects
        for name in ("ada", "bob"):
            user, _ = users.get_or_create(username=name, defaults={"first_name": name.title()})
            user.set_password(name)
            user.save()
            Token.objects.exclude(key=f"demo-{name}").filter(user=user).delete()
            Token.objects.get_or_create(user=user, defaults={"key": f"demo-{name}"})
        admin, _ = users.get_or_create(username="admin")
        admin.is_staff = admin.is_superuser = True
        admin.set_password("admin")
        admin.save()
        self.stdout.write("Demo users: ada, bob (tokens demo-ada, demo-bob); admin with password admin.")
