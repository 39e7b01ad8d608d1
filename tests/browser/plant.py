"""Plants hostile texts wherever users and agents write, and prints the admin's pages that show them."""

from __future__ import annotations

import json
from itertools import cycle

from django.contrib.auth import get_user_model

from agui_django.models import Message, RunEvents
from agui_django.protocol.codec import encode
from tests.admin.planted import HOSTILE, Planted

#: Addresses that give files or events, or only act.
NO_PAGES = ("/live/", ".ndjson", ".txt", "/message/", "/file/", "/status/", "/thread/1/export/", "/panel/")


def plant() -> None:
    """Print their addresses as JSON."""
    texts = cycle(HOSTILE)
    owner = get_user_model().objects.create_user(HOSTILE[0][:30], first_name=HOSTILE[1][:30])
    planted = Planted(owner, lambda name: next(texts))
    everything = encode({"id": "m1", "role": "user", "content": "\n\n".join(HOSTILE)})
    Message.objects.filter(pk=planted.message.pk).update(wire=everything)
    lines = [encode({"type": "CUSTOM", "name": text, "value": {text: text}}) for text in HOSTILE]
    RunEvents.objects.filter(run=planted.run).update(text="\n".join(lines))
    skipped = (*NO_PAGES, f"/{planted.thread.pk}/export/")
    print(json.dumps([each for each in planted.addresses() if not any(part in each for part in skipped)]))
