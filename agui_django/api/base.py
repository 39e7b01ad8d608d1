"""What every view of the API has in common: who asks, in which thread it is answered, how an error is told.

Law: everything that touches the database (login, rights, throttles, the rows) is one job of the app's own pool; only
what has to wait for the event loop (an ``async def`` handler) takes several. Errors are those of all other addresses.
"""

from __future__ import annotations

import math
from asyncio import get_running_loop, iscoroutinefunction
from collections.abc import Callable, Container
from typing import Any, ClassVar, NoReturn, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseBase
from rest_framework import exceptions, serializers
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.views import APIView

from agui_django.access import get_policy
from agui_django.api.answers import json_answer
from agui_django.api.filters import Filters, Id
from agui_django.api.pagination import Orders, known_only, paginate
from agui_django.api.schema import Schema
from agui_django.api.serializers import Shape
from agui_django.api.sight import Sight
from agui_django.api.throttles import ScopedThrottle
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import (
    AgUiError,
    InvalidInput,
    NotAuthenticated,
    NotFound,
    PermissionRefused,
    RateExceeded,
    RequestError,
    UnsupportedMediaType,
)
from agui_django.runs.database import get_pool
from agui_django.transports.requests import check_content_type, endpoint, read_body
from agui_django.transports.starts import LARGE

M = TypeVar("M", bound=Model)

#: What is wrong with a value, by the code of REST framework's error: its own texts may hold what was sent.
FAULTS = {
    "required": "is required",
    "null": "must not be null",
    "blank": "must not be empty",
    "max_length": "is too long",
    "invalid_choice": "is none of the choices",
    "not_a_list": "must be a list",
}


class ApiView(APIView):
    """A view of the API: ``def get`` runs in a database thread, ``async def patch`` in the event loop."""

    schema = Schema()
    throttle_classes = (ScopedThrottle,)
    permission_classes = ()
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]  # noqa: RUF012
    #: The media types that a body may have.
    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    #: Names of query parameters that are read.
    query: ClassVar[tuple[str, ...]] = ()
    #: Methods whose requests have a body.
    bodies: ClassVar[tuple[str, ...]] = ()

    #: Set as soon as it is known who asks.
    sight: Sight

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """The view as the URLconf takes it: asynchronous, with JSON errors and none of the site's HTML habits."""

        async def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return await cls(**initkwargs).answer(request, *args, **kwargs)

        made: Any = endpoint(*cls.methods())(view)
        made.cls = made.view_class = cls
        made.initkwargs = made.view_initkwargs = initkwargs
        made.__doc__ = cls.__doc__
        return made

    @classmethod
    def methods(cls) -> list[str]:
        """The methods of this address."""
        named = [
            name for name in cls.http_method_names if hasattr(cls, name) or (name == "head" and hasattr(cls, "get"))
        ]
        return [name.upper() for name in named]

    def get_authenticators(self) -> list[Any]:
        """Those of the policy; for the schema."""
        return [cls() for cls in get_policy().authentication_classes()]

    # ---- a request ---------------------------------------------------------------------------------------------------

    async def answer(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer a request; called in the event loop."""
        self.setup(request, *args, **kwargs)
        handler = getattr(self, "get" if request.method == "HEAD" else str(request.method).lower())
        self.data: Any = None
        self._refused: AgUiError | None = None
        try:
            await self._read(request)
        except AgUiError as error:
            # What is wrong with a body is told to those only who may send one.
            self._refused = error
        try:
            if iscoroutinefunction(handler):
                await get_pool().run(self._enter, request)
                response: HttpResponseBase = await handler(**kwargs)
            else:
                response = await get_pool().run(self._serve, request, handler)
        except exceptions.APIException as error:
            raise told(error) from error
        return response

    def _serve(self, request: HttpRequest, handler: Callable[..., HttpResponseBase]) -> HttpResponseBase:
        self._enter(request)
        return handler(**self.kwargs)

    def _enter(self, request: HttpRequest) -> None:
        """Who asks, whether they ask too often, and whether it can be read. In a database thread."""
        policy = get_policy()
        caller = policy.enter(request)
        self.sight = Sight(policy, caller)
        self.request = Request(request)
        self.request.user = caller.user
        self.check_permissions(self.request)
        self.check_throttles(self.request)
        known_only(request.GET, self.parameters(), self.texts())
        if self._refused is not None:
            raise self._refused

    async def _read(self, request: HttpRequest) -> None:
        if request.method in SAFE_METHODS:
            return
        body = read_body(request)
        if request.method not in self.bodies:
            # A body that nobody reads does no harm; one that needs no permission to be sent across origins might.
            if body:
                check_content_type(request)
            return
        declared = (request.content_type or "").lower()
        if declared not in self.media_types:
            raise UnsupportedMediaType(f"Bodies of this address are {' or '.join(self.media_types)}.")
        if len(body) <= LARGE:
            self.data = decode(body)
        else:
            self.data = await get_running_loop().run_in_executor(None, decode, body)

    def throttled(self, request: Any, wait: float | None) -> NoReturn:
        """Refuse one request too many."""
        raise RateExceeded(extra={"retryAfter": max(1, math.ceil(wait or 1))})

    def parameters(self) -> tuple[str, ...]:
        """The names of the query parameters that this request may have."""
        return self.query if self.request.method in SAFE_METHODS else ()

    def texts(self) -> Container[str]:
        """Those of them that are texts, and may be empty."""
        filters: type[Filters] | None = getattr(self, "filters", None)
        return {"search", *(name for name, each in filters.base_filters.items() if type(each) is Id)} if filters else ()

    # ---- parts -------------------------------------------------------------------------------------------------------

    def checked(self, shape: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """The body, as a shape has it.

        Raises:
            InvalidInput: with what was wrong where.
        """
        known = shape().fields
        if not isinstance(self.data, dict):
            raise InvalidInput("The body is malformed.", fields=[{"path": "", "message": "must be an object"}])
        if not self.data.keys() <= known.keys():
            # A misspelt member would change nothing, and nobody would be told.
            message = f"takes only {', '.join(known)}"
            raise InvalidInput("The body is malformed.", fields=[{"path": "", "message": message}])
        made = shape(data=self.data)
        if not made.is_valid():
            raise InvalidInput("The body is malformed.", fields=_faults(made.errors))
        found: dict[str, Any] = made.validated_data
        return found


class ListView(ApiView):
    """A list behind a cursor."""

    shape: ClassVar[type[Shape]]
    filters: ClassVar[type[Filters]]
    orders: ClassVar[Orders]
    #: Further query parameters.
    more: ClassVar[tuple[str, ...]] = ()

    def parameters(self) -> tuple[str, ...]:
        """Those of the filters and of the page."""
        if self.request.method not in SAFE_METHODS:
            return ()
        return ("cursor", "limit", "ordering", *self.filters.base_filters, *self.more)

    def page(
        self, rows: QuerySet[M], *, prepare: Callable[[QuerySet[M]], QuerySet[M]], shown: Callable[[list[M]], list[Any]]
    ) -> HttpResponseBase:
        """The page that was asked for.

        Args:
            rows: what the caller may see.
            prepare: brings along what the shape reads.
            shown: those of a page that the policy shows, ready for the shape.
        """
        query = self.request._request.GET
        narrowed = self.filters.narrow(rows, query)
        page = paginate(prepare(narrowed), query, self.orders)
        return json_answer(
            {
                "results": self.shape(shown(page.rows), many=True).data,
                "next": self._address(page.next),
                "previous": self._address(page.previous),
            }
        )

    def _address(self, query: str | None) -> str | None:
        return None if query is None else f"{self.request._request.path}?{query}"


def told(error: exceptions.APIException) -> AgUiError:
    """An error of REST framework (of a site's throttle or permission) as ours."""
    if isinstance(error, exceptions.Throttled):
        return RateExceeded(extra={"retryAfter": max(1, math.ceil(getattr(error, "wait", None) or 1))})
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return NotAuthenticated()
    if isinstance(error, exceptions.PermissionDenied):
        return PermissionRefused()
    if isinstance(error, exceptions.NotFound):
        return NotFound()
    return RequestError() if error.status_code < 500 else AgUiError("Something went wrong here.")


def _faults(errors: Any, path: str = "") -> list[dict[str, str]]:
    if isinstance(errors, dict):
        return [
            fault
            for name, inside in errors.items()
            for fault in _faults(inside, path if name == "non_field_errors" else f"{path}/{name}")
        ]
    return [{"path": path, "message": FAULTS.get(getattr(problem, "code", ""), "is malformed")} for problem in errors]
