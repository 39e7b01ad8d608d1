"""Places between two lines of the engine where the process can be told to die, by SIGKILL.

Law: a place is armed by writing its name into the file that AGUI_FAULT names; it is disarmed before the process dies,
so that the next process lives.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def reach(point: str) -> None:
    """Die here, if this is the place."""
    file = Path(os.environ.get("AGUI_FAULT", "/nowhere"))
    try:
        if file.read_text() != point:
            return
    except FileNotFoundError:
        return
    file.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, point: Callable[..., str]) -> None:
    """Die before a function is called."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reach(point(*args, **kwargs))
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, point: str) -> None:
    """Die after a function has done its work."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        reach(point)
        return result

    setattr(owner, name, wrapped)


def install() -> None:
    """Wrap the functions that stand at those places."""
    from agui_django.runs import recorder, resume
    from agui_django.runs.engine import RunEngine
    from agui_django.runs.writer import Writer
    from agui_django.transports import sse

    def told(writer: Writer, items: list[Any], held: Any) -> str:
        return "last commit" if any(item.closing is not None for item in items) else "commit"

    # The rows are committed, nobody was woken.
    before(Writer, "_tell", told)
    # A follower has what it was woken for; its bytes have not left.
    before(sse, "frames", lambda batch: "send")
    # The answers are written, the transaction is open.
    after(resume, "carry_out", "opening")
    # Nothing is claimed yet; it is, and nothing was done for it.
    before(recorder, "claim_once", lambda *args: "claiming")
    after(recorder, "claim_once", "claimed")
    # The run is stored and claimed; no task executes it.
    before(RunEngine, "launch", lambda *args, **kwargs: "opened")
