"""docs/reference/api.md and docs/howto/api.md: every address is there, and the code does what the pages say."""

from __future__ import annotations

import re

import pytest

from agui_django.api.routes import urlpatterns
from tests.api.test_permissions import MATRIX
from tests.parts import ROOT

REFERENCE = (ROOT / "docs" / "reference" / "api.md").read_text()
HOWTO = (ROOT / "docs" / "howto" / "api.md").read_text()


def table() -> dict[str, tuple[set[str], str]]:
    rows = re.findall(r"^\| `([^`]+)` \| ([A-Z, ]+) \| [^|]* \| ?([^|]*?) ?\|$", REFERENCE, re.MULTILINE)
    return {address: (set(methods.split(", ")), permissions) for address, methods, permissions in rows}


def test_every_address_is_in_the_reference() -> None:
    expected = {}
    for pattern in urlpatterns:
        view = getattr(pattern.callback, "cls", None)
        if view is not None and pattern.name:
            address = re.sub(r"<\w+:(\w+)>", r"<\1>", str(pattern.pattern))
            expected[address] = set(view.methods()) - {"HEAD"}
    assert {address: methods for address, (methods, _) in table().items()} == expected


def test_permissions_are_those_of_the_matrix() -> None:
    names = {re.sub(r"<\w+:(\w+)>", r"<\1>", str(each.pattern)): each.name for each in urlpatterns if each.name}
    for address, (methods, told) in table().items():
        needed = {each for method in methods for each in MATRIX[names[address], method].permissions}
        if address.endswith("/export"):
            assert all(each.startswith("view_") for each in needed)
        else:
            assert set(re.findall(r"`(\w+)`", told)) == needed, address


def test_the_samples() -> None:
    samples = re.findall(r"```python\n(.*?)```", HOWTO, re.DOTALL)
    assert len(samples) == 3
    names: dict[str, object] = {}
    for sample in samples:
        exec(sample, names)
    assert len(names["urlpatterns"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", ["agui_reads", "agui_runs"])
def test_the_scopes_are_those_of_the_throttle(scope: str) -> None:
    from agui_django.api import throttles

    assert scope in HOWTO
    assert scope in (throttles.READS, throttles.RUNS)
