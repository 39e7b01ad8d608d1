"""The demo site as the tests see it: demo mode, one database file per process."""

from __future__ import annotations

import os
import tempfile

# Before the site's settings are read; a command that a test starts inherits it.
os.environ.setdefault("AGUI_DEBUG", "1")
if "AGUI_ATTACHMENTS" not in os.environ:
    _attachments = tempfile.TemporaryDirectory(prefix="agui-attachments-")
    os.environ["AGUI_ATTACHMENTS"] = _attachments.name

from project.settings import *  # noqa: F403

# Making a user must not cost a tenth of a second.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
