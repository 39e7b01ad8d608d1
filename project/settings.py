"""Settings of the demo site, by environment: with AGUI_DEBUG=1 a demo on one machine, without it production.

AGUI_DATABASE is ``sqlite`` (default) or ``postgres``, AGUI_DATABASE_NAME its file or name. AGUI_SQLITE=wal turns on
write-ahead logging and IMMEDIATE transactions, which is what docs/howto/databases.md advises; without it the database
is configured as ``startproject`` leaves it.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from django.conf import global_settings
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("AGUI_DEBUG") == "1"
#: Whether there are demo users, and a page that logs its visitors in. A name of its own because test runners turn
#: DEBUG off.
DEMO = DEBUG

if DEBUG:
    SECRET_KEY = "for-the-demo-on-one-machine-only"  # noqa: S105 - production reads it from the environment
    ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", "testserver"]
else:
    try:
        SECRET_KEY = os.environ["AGUI_SECRET_KEY"]
    except KeyError:
        raise ImproperlyConfigured("Set AGUI_DEBUG=1 for the demo, or AGUI_SECRET_KEY for production.") from None
    ALLOWED_HOSTS = [host for host in os.environ.get("AGUI_ALLOWED_HOSTS", "").split(",") if host]
    CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS]
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True

INSTALLED_APPS = [
    "daphne",
    "agui_django",  # in front of the admin: its badge is in the header of every page there
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "project",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "project.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def database() -> dict[str, Any]:
    """The database that the environment asks for; tests get one of their own per process."""
    name = os.environ.get("AGUI_DATABASE_NAME", "")
    if os.environ.get("AGUI_DATABASE", "sqlite") == "postgres":
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name or "agui",
            "HOST": os.environ.get("AGUI_POSTGRES_HOST", "127.0.0.1"),
            "PORT": os.environ.get("AGUI_POSTGRES_PORT", "5432"),
            "USER": os.environ.get("AGUI_POSTGRES_USER", "root"),
            # Behind pgbouncer a cursor would outlive the transaction that has its connection.
            "DISABLE_SERVER_SIDE_CURSORS": os.environ.get("AGUI_PGBOUNCER") == "1",
            "TEST": {"NAME": f"agui_tests_{os.getpid()}"},
        }
    sqlite: dict[str, Any] = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name or BASE_DIR / "db.sqlite3",
        # A file: the in-memory database of Django's test runner cannot be shared with the writer's thread.
        "TEST": {"NAME": Path(tempfile.gettempdir()) / f"agui-tests-{os.getpid()}.sqlite3"},
    }
    if os.environ.get("AGUI_SQLITE") == "wal":
        sqlite["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
    return sqlite


DATABASES = {"default": database()}

#: AGUI_REDIS is the address of a Redis, such as redis://127.0.0.1:6379/0, where several processes serve the site.
if os.environ.get("AGUI_REDIS"):
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {"hosts": [os.environ["AGUI_REDIS"]], "prefix": os.environ.get("AGUI_REDIS_PREFIX", "asgi")},
        }
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "admin:login"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STORAGES = {
    **global_settings.STORAGES,
    # The files of messages: nothing but the app gives them out.
    "attachments": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.environ.get("AGUI_ATTACHMENTS", BASE_DIR / "attachments")},
    },
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
}

#: Every key has a default; docs/reference/settings.md lists them.
#: AGUI_SETTINGS is JSON, for trying one out without a change here.
AGUI_DJANGO: dict[str, Any] = {
    "ATTACHMENT_STORAGE": "attachments",
    **json.loads(os.environ.get("AGUI_SETTINGS", "{}")),
}
