"""Tool calls' arguments: a JSON text against the signature of the function that it is meant for.

Law: arguments come from a model and are not to be trusted; a function sees only what its signature allows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from agui_django.protocol.errors import ToolArgumentsError
from agui_django.protocol.json_patch import escape


@dataclass(frozen=True)
class Signature:
    """What a function takes and gives."""

    model: type[BaseModel]
    names: dict[str, str]  # the model's field -> the parameter
    positional: tuple[str, ...]  # parameters that have no name for callers
    takes_run: bool
    returns: Any

    def read(self, tool: str, text: str) -> tuple[list[Any], dict[str, Any]]:
        """The values to call the function with.

        Raises:
            ToolArgumentsError: the text does not fit; the message and `fields` name what.
        """
        try:
            values = self.model.model_validate_json(text or "{}")
        except ValidationError as error:
            fields = [
                {"path": "".join(f"/{escape(str(step))}" for step in item["loc"]), "message": item["msg"]}
                for item in error.errors(include_url=False, include_input=False, include_context=False)
            ]
            told = "; ".join(f"{field['path'][1:] or 'arguments'}: {field['message']}" for field in fields[:10])
            text = f"{tool} was called with arguments that do not fit: {told}"
            raise ToolArgumentsError(text, fields=fields) from None
        given = {self.names[name]: getattr(values, name) for name in self.names if name in values.model_fields_set}
        given.update(values.model_extra or {})
        args = []
        for name in self.positional:
            if name not in given:
                break
            args.append(given.pop(name))
        return args, given


#: What was read of a function, for as long as it lives: a tool that is made inside of an agent holds its run.
_known: WeakKeyDictionary[Any, dict[bool, Signature]] = WeakKeyDictionary()


def signature_of(fn: Callable[..., Any]) -> Signature:
    """What a tool function takes; its first parameter, if named ``run``, is the run context."""
    # A bound method is made anew at every look, but the function behind it stays.
    bound, owner = (True, fn.__func__) if inspect.ismethod(fn) else (False, fn)
    try:
        known = _known.setdefault(owner, {})
    except TypeError:  # an object that cannot be hashed, or not be referred to weakly
        return _read(fn)
    if bound not in known:
        known[bound] = _read(fn)
    return known[bound]


def returned_by(fn: Callable[..., Any]) -> Any:
    """The type that a function says it returns; Any where it says nothing."""
    return _hints(fn).get("return", Any)


def _read(fn: Callable[..., Any]) -> Signature:
    parameters = list(inspect.signature(fn).parameters.values())
    hints = _hints(fn)
    takes_run = bool(parameters) and parameters[0].name == "run"
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    positional: list[str] = []
    extra = False
    for number, parameter in enumerate(parameters[takes_run:]):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = True
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        # Names of our own: a parameter may be called like a method of the model.
        name = f"p{number}"
        names[name] = parameter.name
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    config = ConfigDict(extra="allow" if extra else "forbid", arbitrary_types_allowed=True)
    model = create_model("Arguments", __config__=config, **fields)
    return Signature(model, names, tuple(positional), takes_run, hints.get("return", Any))


def read_value(type_: Any, text: str) -> Any:
    """A tool result's or an answer's text as a value of a type; a text that is no JSON is taken as it is.

    Raises:
        ValidationError: it does not fit.
    """
    if type_ is str:
        return text
    adapter = TypeAdapter(type_)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        if not any(item["type"] == "json_invalid" for item in error.errors(include_url=False)):
            raise
    return adapter.validate_python(text)


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    bare: Any = inspect.unwrap(fn)
    while isinstance(bare, functools.partial):
        bare = inspect.unwrap(bare.func)
    if not inspect.isroutine(bare):
        bare = type(bare).__call__
    try:
        return get_type_hints(bare, include_extras=True)
    except (NameError, TypeError):  # names of a TYPE_CHECKING block
        return {}
