"""The demo site with django-cors-headers, as docs/howto/copilotkit.md says it; CORS_ORIGINS names who may call."""

from __future__ import annotations

import os

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as APPS
from project.settings import MIDDLEWARE as LAYERS

INSTALLED_APPS = [*APPS, "corsheaders"]
MIDDLEWARE = ["corsheaders.middleware.CorsMiddleware", *LAYERS]
CORS_ALLOWED_ORIGINS = os.environ["CORS_ORIGINS"].split(",")
CORS_URLS_REGEX = r"^/copilotkit"
CORS_ALLOW_CREDENTIALS = True
CSRF_TRUSTED_ORIGINS = CORS_ALLOWED_ORIGINS
