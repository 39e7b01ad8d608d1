"""Migrates the measured site's database and makes its one user, whose token is `bench`."""

from __future__ import annotations

import django


def main() -> None:
    """Prepare a new database."""
    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from rest_framework.authtoken.models import Token

    call_command("migrate", verbosity=0)
    Token.objects.create(user=get_user_model().objects.create_user("bench"), key="bench")


if __name__ == "__main__":
    main()
