"""The table of errors: every class has a row, and what a client is told is ours."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import agui_django.protocol
from agui_django.protocol import errors
from agui_django.protocol.errors import TABLE, AgentError, AgUiError, answer_for


def subclasses(cls: type[AgUiError]) -> Iterator[type[AgUiError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from subclasses(sub)


def test_every_error_has_a_row_of_its_own() -> None:
    for module in pkgutil.iter_modules(agui_django.protocol.__path__):
        importlib.import_module(f"agui_django.protocol.{module.name}")
    ours = {cls for cls in subclasses(AgUiError) if cls.__module__.startswith("agui_django.")}
    assert ours == set(TABLE)


@pytest.mark.parametrize("cls", TABLE, ids=lambda cls: cls.__name__)
def test_a_row_is_what_the_error_says(cls: type[AgUiError]) -> None:
    theirs = issubclass(cls, AgentError)  # the site writes the text
    error, answer = cls("Sorry.") if theirs else cls(), TABLE[cls]
    assert (error.code, error.status) == (answer.code, answer.status)
    assert 400 <= answer.status < 600
    # 4000 to 4999 are an application's own close codes (RFC 6455 section 7.4.2)
    assert answer.close_code == 4000 + answer.status
    assert cls.__doc__ is not None
    assert str(error.message) == ("Sorry." if theirs else cls.__doc__.split("\n", 1)[0].strip())


def test_a_sites_own_error_takes_the_row_above_it() -> None:
    class OutOfStock(AgentError):
        """There is nothing left."""

    assert answer_for(OutOfStock) == TABLE[AgentError]
    assert OutOfStock("Gone.", code="out_of_stock").code == "out_of_stock"
    assert errors.RunSuspended not in TABLE  # a way out of a function, not an error
