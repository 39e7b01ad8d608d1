"""The site's Content-Security-Policy: what a page may load, should somebody's words ever become markup."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

HEADER: Final = "Content-Security-Policy"

#: No inline scripts and styles, nothing from elsewhere. It holds for the chat page, the admin and all else.
POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; form-action 'self'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)

#: The beginning of a path -> the directives that differ there.
EXCEPTIONS: Final = {
    # CopilotKit writes style elements, brings its fonts as data, and shows files before they are sent.
    "/copilotkit-demo/": (
        "style-src 'self' 'unsafe-inline'; font-src 'self' data:; img-src 'self' data: blob:; media-src 'self' blob:"
    ),
}


def policy(path: str) -> str:
    """The policy of a page."""
    found = dict(part.split(" ", 1) for part in POLICY.split("; "))
    for start, directives in EXCEPTIONS.items():
        if path.startswith(start):
            found |= dict(part.split(" ", 1) for part in directives.split("; "))
    return "; ".join(f"{name} {sources}" for name, sources in found.items())


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Sends the policy with every answer that has none of its own: files and the API's page have stricter ones."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Add the header."""
        response.headers.setdefault(HEADER, policy(request.path_info))
        return response
