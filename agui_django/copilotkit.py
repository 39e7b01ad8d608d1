"""CopilotKit's runtime protocol: ``urlpatterns += copilotkit_urls("copilotkit")``.

A CopilotKit front end then works against the site alone: ``<CopilotKit runtimeUrl="/copilotkit">``.
"""

from __future__ import annotations

import re

from django.urls import URLPattern, re_path

from agui_django.transports.copilotkit.calls import Mount
from agui_django.transports.copilotkit.routes import serve

__all__ = ["copilotkit_urls"]


def copilotkit_urls(
    prefix: str = "", *, default_agent: str | None = None, license_status: str | None = None
) -> list[URLPattern]:
    """The addresses of one mount: CopilotKit's REST transport below it, its single-route one at it.

    They are taken with and without a slash at the end, and never redirect; below the prefix everything else is a 404 in
    JSON. Rights are the `AccessPolicy`'s.

    Args:
        prefix: the path from the site's root, such as ``"copilotkit"``; empty where it is included below another one.
        default_agent: the registered agent that answers as ``default``; None: ``COPILOTKIT_DEFAULT_AGENT``.
        license_status: what ``/info`` says of a licence; None: ``COPILOTKIT_LICENSE_STATUS``.

    Returns:
        Patterns to add to a site's ``urlpatterns``; the first one's name is ``agui-copilotkit``.
    """
    given = {"mount": Mount(default_agent, license_status)}
    base = re.escape(prefix.strip("/"))
    below = f"{base}/" if base else ""
    return [
        re_path(rf"^{base}/?\Z", serve, given, name="agui-copilotkit"),
        re_path(rf"^{below}(?P<rest>(?s:.+))\Z", serve, given),
    ]
