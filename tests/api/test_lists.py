"""Lists: what they show, their pages, filters and orders."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Client, Rows

pytestmark = pytest.mark.django_db(transaction=True)


def test_smoke(api: Client, ada: Any) -> None:
    made = Rows(ada)
    run = made.run({"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"})
    made.message("m1")
    made.interrupt(run)
    for path in (
        "agents",
        "threads",
        f"threads/{made.thread.pk}",
        f"threads/{made.thread.pk}/messages",
        f"threads/{made.thread.pk}/runs",
        f"threads/{made.thread.pk}/state",
        f"threads/{made.thread.pk}/state/versions",
        f"threads/{made.thread.pk}/state/versions/1",
        "runs",
        f"runs/{run.pk}",
        f"runs/{run.pk}/events",
    ):
        print(path, api.get(path))
    x = api.ask("GET", f"runs/{run.pk}/events?format=ndjson")
    print(x.status, x.headers, x.chunks)
    print(api.send("POST", f"runs/{run.pk}/cancel"))
