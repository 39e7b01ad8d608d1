"""The description of the API: as an OpenAPI document, and as a page."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import Any

from django.http import HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from django.urls import get_script_prefix

from agui_django.api.answers import json_answer
from agui_django.api.base import ApiView
from agui_django.api.document import document
from agui_django.api.page import components, groups
from agui_django.api.schema import operation

#: Styles from this host, nothing else from anywhere.
POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_made: dict[Any, dict[str, Any]] = {}


class _Described(ApiView):
    async def described(self) -> dict[str, Any]:
        """The document; made once for each way that the site can be reached."""
        key = getattr(self.request._request, "urlconf", None), get_script_prefix()
        if key not in _made:
            # It takes a while: neither the loop nor a database thread waits for it.
            _made[key] = await get_running_loop().run_in_executor(None, document, *key)
        return _made[key]


class SchemaDocument(_Described):
    """The OpenAPI document."""

    @operation(exclude=True)
    async def get(self) -> HttpResponseBase:
        """The document, as JSON."""
        return json_answer(await self.described())


class Docs(_Described):
    """The page."""

    @operation(exclude=True)
    async def get(self) -> HttpResponseBase:
        """The document, to read."""
        told = await self.described()
        shown = {"info": told["info"], "version": told["openapi"], "groups": groups(told), "types": components(told)}
        page = render_to_string("agui_django/api_docs.html", shown)
        return HttpResponse(page, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})
