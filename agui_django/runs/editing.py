"""Edits of a thread's shared state from outside: by staff, by a client through the API.

Law: accepted means stored. The edit is a version of the state when the call returns; a run that is active takes it in,
wherever it is executed, and whatever becomes of that process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django.utils import timezone

from agui_django.agents.live_values import check_names
from agui_django.conf import settings
from agui_django.models import Run, StateVersion, Thread
from agui_django.protocol.codec import clean, decode, encode
from agui_django.protocol.errors import (
    InvalidInput,
    NotFound,
    NotJson,
    PatchConflict,
    StateInvalid,
    StateRefused,
    StateTooLarge,
    VersionConflict,
)
from agui_django.protocol.json_patch import PatchError, PatchTooLarge, apply_patch, check_patch, json_equal, make_patch
from agui_django.protocol.merge import merge_patch
from agui_django.runs import merging, sql
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.engine import get_engine
from agui_django.runs.setup import Wire

#: Operations of one patch.
MAX_OPS = 10_000

Origin = Literal["staff", "client"]


@dataclass(frozen=True)
class Edited:
    """What became of an edit.

    Attributes:
        version: the row; the current version's, where the edit changed nothing.
        run: the active run that has to take it in, None for a thread at rest.
        changed: whether there is a new version.
    """

    version: StateVersion
    run: UUID | None = None
    changed: bool = True


async def aedit_state(
    thread: Thread,
    *,
    user: Any = None,
    patch: Sequence[Mapping[str, Any]] | None = None,
    merge: Mapping[str, Any] | None = None,
    if_version: int | None = None,
    origin: Origin = "staff",
) -> StateVersion:
    """Edit a thread's state, and tell those who have to know; from any event loop.

    On a thread at rest the edit is made at once, and open pages are told. An active run takes it in between two of its
    agent's awaits, never inside a ``run.edit_state()`` block; where the agent has changed the same meanwhile, the edit
    wins.

    Args:
        thread: the row, looked up in the caller's scope.
        user: who edits.
        patch: a JSON Patch (RFC 6902).
        merge: a merge patch (RFC 7396), instead.
        if_version: the version that the caller has seen; another one is stored: nothing is changed.
        origin: as whom.

    Returns:
        The new version; the current one where the edit changes nothing.

    Raises:
        NotFound: the thread is gone.
        InvalidInput: the patch is malformed.
        VersionConflict: its `extra` has the ``version`` there is.
        PatchConflict: the patch does not apply to the state as it is now.
        StateRefused: what it leads to does not fit the agent's schema, or cannot be a state.
        StateTooLarge: it leads beyond ``MAX_STATE``.
    """
    edited = await get_pool().run(
        edit_state, thread, user=user, patch=patch, merge=merge, if_version=if_version, origin=origin
    )
    if edited.changed:
        told(edited)
    return edited.version


def edit_state(
    thread: Thread,
    *,
    user: Any = None,
    patch: Sequence[Mapping[str, Any]] | None = None,
    merge: Mapping[str, Any] | None = None,
    if_version: int | None = None,
    origin: Origin = "staff",
) -> Edited:
    """`aedit_state` for a pool's thread: what is stored. Give what it gives to `told` afterwards."""
    change = _Change.of(patch, merge)
    return transact(_edit, thread.pk, getattr(user, "pk", None), change, if_version, StateVersion.Origin(origin))


def told(edited: Edited) -> None:
    """Tell an edit that is committed to the run that has to take it in, or to those who look at the thread."""
    if edited.run is not None:
        get_engine().edited(edited.run, edited.version.version)
    else:
        broadcaster.publish(edited.version.thread_id)


@dataclass(frozen=True)
class _Change:
    """A patch of either kind whose form is right."""

    patch: list[Wire] | None
    merge: Wire | None

    @classmethod
    def of(cls, patch: Sequence[Mapping[str, Any]] | None, merge: Mapping[str, Any] | None) -> _Change:
        if (patch is None) == (merge is None):
            raise InvalidInput("An edit is a JSON Patch or a merge patch.")
        try:
            given = clean(patch if merge is None else merge, nan="refuse")
        except NotJson as error:
            raise InvalidInput("The patch is not JSON.", fields=error.fields) from None
        if merge is not None:
            if not isinstance(given, dict):
                raise InvalidInput("A merge patch of the state is an object.")
            return cls(None, given)
        if not isinstance(given, list) or len(given) > MAX_OPS:
            raise InvalidInput(f"A JSON Patch is a list of at most {MAX_OPS} operations.")
        try:
            check_patch(given)
        except PatchError as error:
            fields = [{"path": f"/{error.at}", "message": "is no operation of a JSON Patch"}]
            raise InvalidInput("The patch is malformed.", fields=fields) from None
        return cls(given, None)

    def on(self, state: Any) -> Any:
        """What it makes of a state."""
        if self.patch is None:
            return merge_patch(state, self.merge)
        try:
            return apply_patch(state, self.patch, most=settings.MAX_STATE)
        except PatchTooLarge:
            raise StateTooLarge from None
        except PatchError as error:
            raise PatchConflict(fields=[{"path": f"/{error.at}", "message": "does not apply"}]) from None


def _edit(key: int, user: Any, change: _Change, if_version: int | None, origin: str) -> Edited:
    alias = database_alias()
    thread = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=key).first()
    if thread is None:
        raise NotFound
    if if_version is not None and if_version != thread.state_version:
        raise VersionConflict(extra={"version": thread.state_version})
    run = Run.objects.using(alias).filter(thread=thread).active().first()
    state = decode(thread.state) if run is None else merging.present_state(alias, thread, run)
    after = change.on(state)
    if json_equal(after, state):
        return Edited(_current(alias, thread), changed=False)
    _check(thread.agent, state, after)
    before, number = thread.state_version, thread.state_version + 1
    if before and thread.base_version is None:
        _keep(alias, thread)
    edit = ""
    if run is not None:
        patch = change.patch if change.patch is not None else make_patch(state, after)
        edit = encode({"base": state, "patch": patch})
    values = merging.insert_version(
        alias, thread.pk, number, after, origin=origin, user=user, run=run.pk if run is not None else None, edit=edit
    )
    values |= {
        "updated_at": timezone.now(),
        "base_version": before if thread.base_version is None else thread.base_version,
    }
    sql.update(alias, Thread, values, id=thread.pk)
    return Edited(StateVersion.objects.using(alias).get(thread=thread, version=number), run.pk if run else None)


def _check(agent: str, state: Any, after: Any) -> None:
    """Refuse what cannot be the state of an agent's thread."""
    if isinstance(state, dict) and not isinstance(after, dict):
        raise StateRefused("The state must be an object.")
    try:
        check_names(after)
    except (NotJson, StateInvalid) as error:
        raise StateRefused("The state cannot be told to clients.", fields=error.fields) from None
    if not merging.fits(encode(after)):
        raise StateTooLarge
    if wrong := merging.guard_of(agent)(after):
        raise StateRefused(fields=wrong)


def _current(alias: str, thread: Thread) -> StateVersion:
    row = StateVersion.objects.using(alias).filter(thread=thread, version=thread.state_version).first()
    return row or StateVersion(
        thread=thread, version=thread.state_version, state=thread.state, origin=StateVersion.Origin.AGENT
    )


def _keep(alias: str, thread: Thread) -> None:
    """The version that an edit is made on stays known: a thread that was not made by a run may have no row of it."""
    if not StateVersion.objects.using(alias).filter(thread=thread, version=thread.state_version).exists():
        merging.insert_version(
            alias, thread.pk, thread.state_version, decode(thread.state), origin=StateVersion.Origin.AGENT
        )
