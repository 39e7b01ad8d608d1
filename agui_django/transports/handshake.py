"""Who opens a WebSocket: its handshake as a request, the page it comes from, and the token it may bring.

Law: a session counts only behind an Origin that the site trusts (a handshake carries cookies across origins and no
CSRF token), and every login goes through `AccessPolicy.enter`, as that of a request does.
"""

from __future__ import annotations

import io
import re
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.contrib import auth
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.utils import translation
from django.utils.http import is_same_domain

from agui_django.access import AccessPolicy, Caller
from agui_django.protocol.errors import InvalidInput, PermissionRefused

#: The subprotocol that is answered with.
PROTOCOL = "agui"

#: How a client brings a token in the handshake: ``agui.token.<token>``, ``agui.bearer.<token>``.
_TOKEN = re.compile(r"agui\.(token|bearer)\.(.+)", re.IGNORECASE)

_LOCALE = "django.middleware.locale.LocaleMiddleware"


class Handshake:
    """The opening request of a socket, as the site's own code may look at it.

    Args:
        scope: the ASGI scope, with ``session`` where Channels' AuthMiddlewareStack is around the routes.

    Raises:
        PermissionRefused: it comes from a page of another site.
    """

    def __init__(self, scope: dict[str, Any]) -> None:
        """Read it; the database is not asked."""
        offered: list[str] = scope.get("subprotocols") or []
        self._session = scope.get("session")
        self._user = scope.get("user") if self._session is None else None
        self._scheme = _http(scope.get("scheme"))
        # A server that does not say the scheme (Daphne) is taken at the proxy's word, or at the page's.
        self._scope = {**scope, "type": "http", "method": "GET", "scheme": self._scheme or "http"}
        self.subprotocol = PROTOCOL if PROTOCOL in offered else None
        self.request = self._read()
        self._origin: str | None = self.request.headers.get("Origin")
        if self._origin is not None and not self._trusted(self._origin):
            raise PermissionRefused("Sockets of pages from other sites are refused.")
        for name in offered:
            if match := _TOKEN.fullmatch(name):
                self.authorize(match[1], match[2])

    def _read(self) -> Any:
        request: Any = ASGIRequest(self._scope, io.BytesIO())
        request.user = AnonymousUser() if self._user is None else self._user
        return request

    @property
    def brought_token(self) -> bool:
        """Whether there is something to authenticate by that the client named itself."""
        return "Authorization" in self.request.headers

    def authorize(self, scheme: str, token: str) -> None:
        """Take a token as though it had come in the Authorization header.

        Raises:
            InvalidInput: it cannot be a header's value.
        """
        if not (scheme.isalpha() and scheme.isascii() and token.isascii() and token.isprintable()):
            raise InvalidInput(fields=[{"path": "/token", "message": "must be printable ASCII"}])
        others = [(name, value) for name, value in self._scope["headers"] if name.lower() != b"authorization"]
        ours = (b"authorization", f"{scheme.capitalize()} {token}".encode())
        self._scope = {**self._scope, "headers": [*others, ours]}
        self.request = self._read()

    def enter(self, policy: AccessPolicy) -> Caller:
        """Who it is at this moment: a logout since the handshake counts. In a database thread.

        Raises:
            NotAuthenticated, PermissionRefused: see `AccessPolicy.enter`.
        """
        if self._session is not None and self._origin is not None:
            store = import_module(django_settings.SESSION_ENGINE).SessionStore
            self.request.session = store(self._session.session_key)
            self.request.user = auth.get_user(self.request)
        return policy.enter(self.request)

    def language(self) -> str | None:
        """The language to speak, where the site chooses one by request."""
        if django_settings.USE_I18N and _LOCALE in django_settings.MIDDLEWARE:
            return translation.get_language_from_request(self.request)
        return None

    def _trusted(self, origin: str) -> bool:
        """Whether a page may open sockets here: Django's rule for requests that change something."""
        try:
            host = self.request.get_host()
            page = urlsplit(origin)
        except (DisallowedHost, ValueError):
            return False
        secure = self.request.is_secure()
        schemes = {"https"} if secure else {"http"} if self._scheme else {"http", "https"}
        if page.scheme in schemes and page.netloc.lower() == host.lower():
            return True
        for entry in django_settings.CSRF_TRUSTED_ORIGINS:
            trusted = urlsplit(entry)
            # ".example.org" is what is_same_domain calls a domain with its subdomains.
            name = trusted.netloc.lstrip("*") if "*" in trusted.netloc else trusted.netloc
            if page.scheme == trusted.scheme and is_same_domain(page.netloc, name):
                return True
        return False


def _http(scheme: str | None) -> str | None:
    return {"ws": "http", "wss": "https"}.get(scheme or "", scheme)
