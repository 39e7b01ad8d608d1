"""docs/howto/admin.md: the table names what there is, and the sample does what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission

from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "admin.md").read_text()


@pytest.mark.django_db
def test_the_permissions_exist() -> None:
    table = PAGE.split("## Who may do what")[1].split("A support desk")[0]
    named = set(re.findall(r"`([a-z]+_?[a-z]*)`", table))
    known = set(Permission.objects.filter(content_type__app_label="agui_django").values_list("codename", flat=True))
    assert named <= known
    own = {
        "view_content",
        "view_traceback",
        "cancel_run",
        "answer_interrupt",
        "edit_state",
        "export",
        "prune",
        "review_run",
    }
    assert own <= named


@pytest.mark.django_db
def test_the_group() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert Group.objects.get(name="Support").permissions.count() == 5
