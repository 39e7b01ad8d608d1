"""Who is calling, whose threads they see, and what they may do: one overridable policy.

Its methods are plain synchronous ones; the transports call them in a database thread, never in the event loop, so
that they may use the ORM. Law: closed by default, and a foreign id behaves exactly like an unknown one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import router
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject, empty
from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, TokenAuthentication
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.settings import api_settings

from agui_django.conf import imported, settings
from agui_django.protocol.errors import NotAuthenticated, PermissionRefused
from agui_django.statements import Select

if TYPE_CHECKING:
    from agui_django.models import Interrupt, Run

logger = logging.getLogger("agui_django.access")

Verdict = bool | Awaitable[bool]


@dataclass(frozen=True)
class Caller:
    """Who sends a request, as the policy sees it.

    Attributes:
        user: the authenticated user (or an anonymous one where the site allows that).
        scope: the tenancy key under which the caller's thread ids mean something.
        extra: plain JSON that runs started by this request keep as ``run.extra``.
    """

    user: Any
    scope: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class _ReadNothing(BaseParser):
    """Takes every content type and leaves the body alone.

    Without it an authenticator that looks at ``request.POST`` for a CSRF token makes REST framework answer 415.
    """

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        return {}


class AccessPolicy:
    """The access rules of a site; subclass it and name the subclass in ``AGUI_DJANGO["ACCESS_POLICY"]``.

    One instance serves all requests of a process, from several threads at once: keep nothing on ``self``. An
    exception that is not one of ours answers 500 and is logged; to refuse, return False or raise `NotAuthenticated`
    or `PermissionRefused`.
    """

    #: Whether callers without a login may enter. A site that sets this also overrides `scope_for`: whoever shares
    #: a scope shares its threads.
    allow_anonymous: ClassVar[bool] = False

    def authentication_classes(self) -> Sequence[type[BaseAuthentication]]:
        """The REST framework authenticators to try, in order."""
        paths = settings.AUTHENTICATION_CLASSES
        if paths is None:
            classes: Sequence[Any] = api_settings.DEFAULT_AUTHENTICATION_CLASSES  # imported by REST framework
            return classes
        return [imported(path) if isinstance(path, str) else path for path in paths]

    def authenticate(self, request: HttpRequest) -> Any:
        """The user who sends a request.

        Raises:
            NotAuthenticated: there is no valid login; ``extra["authenticate"]`` is the challenge, where the first
                authenticator gives one.
            PermissionRefused: the login is refused, for example for want of a CSRF token.
        """
        authenticators = [_quick(cls)() for cls in self.authentication_classes()]
        drf = Request(request, parsers=[_ReadNothing()], authenticators=authenticators)
        try:
            user = drf.user
        except exceptions.PermissionDenied as refused:
            # The text may quote headers of the request (CSRF names the Origin): for the log only.
            logger.warning("Refused %s %s: %s", request.method, request.path, refused.detail)
            raise PermissionRefused from refused
        except (exceptions.AuthenticationFailed, exceptions.NotAuthenticated) as failed:
            logger.info("No valid login for %s %s: %s", request.method, request.path, failed.detail)
            raise self._challenge(authenticators, drf) from failed
        if not self.allow_anonymous and not getattr(user, "is_authenticated", False):
            raise self._challenge(authenticators, drf)
        return user

    def scope_for(self, user: Any) -> str:
        """The tenancy key of a user: thread ids are looked up inside it only.

        Raises:
            NotAuthenticated: the caller is anonymous and the site has not said whose threads those are.
        """
        if getattr(user, "pk", None) is None:
            raise NotAuthenticated
        return f"user:{user.pk}"

    def may_run(self, user: Any, entry: Any) -> Verdict:
        """Whether a user may start runs of an agent: the ``permission`` it was registered with.

        Args:
            user: the caller.
            entry: the registry's entry of the agent.

        Returns:
            The verdict, or an awaitable of it, which is then awaited in the event loop.
        """
        permission = entry.options.permission
        if permission is None:
            return True
        if isinstance(permission, str):
            return bool(user.has_perm(permission))
        verdict: Verdict = permission(user)
        return verdict if isawaitable(verdict) else bool(verdict)

    def may_see(self, user: Any, run: Run) -> bool:
        """Whether a user may watch a run of their scope; False behaves like an unknown run."""
        return True

    def may_cancel(self, user: Any, run: Run) -> bool:
        """Whether a user may stop a run of their scope that they may see."""
        return True

    def may_answer(self, user: Any, interrupt: Interrupt) -> bool:
        """Whether a user may answer a question, however the answer comes.

        By default whom it was asked may: the thread's owner and the user of the run that asked; in a thread that is
        nobody's, whoever shares its scope; and staff with ``agui_django.answer_interrupt``. Where the agent named a
        permission, they need that, too.
        """
        if interrupt.permission and not user.has_perm(interrupt.permission):
            return False
        return self._asked(user, interrupt) or self.beyond_scope(user, "agui_django.answer_interrupt")

    def may_give_up(self, user: Any, interrupt: Interrupt) -> bool:
        """Whether a user may cancel a question, however that comes: the agent is told that there is no answer.

        By default whoever may answer it, and always whom it was asked: a question that needs a permission they do not
        have must not hold their thread.
        """
        return self._asked(user, interrupt) or self.may_answer(user, interrupt)

    def _asked(self, user: Any, interrupt: Interrupt) -> bool:
        """Whether it was this user's to be asked: the thread's owner, the user of the run; without both, its scope."""
        asked = {interrupt.thread.owner_id, interrupt.run.user_id} - {None}
        if asked:
            return user.pk in asked
        try:
            return self.scope_for(user) == interrupt.thread.scope
        except NotAuthenticated:
            return False

    def beyond_scope(self, user: Any, permission: str) -> bool:
        """Whether a user may do something to what lies outside their scope: staff who hold the permission.

        Args:
            user: the caller.
            permission: of the model that it is done to, such as ``"agui_django.view_thread"``.
        """
        return bool(getattr(user, "is_staff", False) and user.has_perm(permission))

    def run_context(self, request: HttpRequest) -> Mapping[str, Any]:
        """Plain JSON to store with a run as ``run.extra``: the tenant, say. An agent never sees the request."""
        return {}

    # ---- for the transports --------------------------------------------------------------------------------------

    def enter(self, request: HttpRequest) -> Caller:
        """Authenticate a request; call in a database thread."""
        user = self.authenticate(request)
        scope = self.scope_for(user)
        if isinstance(user, SimpleLazyObject) and user._wrapped is not empty:
            # A run that keeps the user must not keep the request that it was found in.
            user = user._wrapped
        return Caller(user, scope)

    def with_context(self, caller: Caller, request: HttpRequest) -> Caller:
        """The caller, with what `run_context` has a run keep of the request."""
        return replace(caller, extra=dict(self.run_context(request)))

    @staticmethod
    def _challenge(authenticators: Sequence[BaseAuthentication], request: Request) -> NotAuthenticated:
        # The first authenticator decides, as in REST framework: where sessions come first, a browser must not be
        # shown the dialog for a password.
        header = authenticators[0].authenticate_header(request) if authenticators else None
        return NotAuthenticated(extra={"authenticate": header} if header else None)


_quicker: dict[Any, type[BaseAuthentication]] = {}


def _quick(cls: Any) -> type[BaseAuthentication]:
    """REST framework's own token authentication with its query compiled once; what a site changed stays as it is."""
    if cls not in _quicker:
        _quicker[cls] = _compiled(cls)
    return _quicker[cls]


def _compiled(cls: Any) -> type[BaseAuthentication]:
    found: type[BaseAuthentication] = cls
    if not issubclass(cls, TokenAuthentication) or (
        cls.authenticate_credentials is not TokenAuthentication.authenticate_credentials
    ):
        return found
    model: Any = cls().get_model()
    owner = model._meta.get_field("user")
    if model._meta.label != "authtoken.Token" or owner.related_model._meta.parents:
        return found
    tokens = Select[Any](lambda alias: model.objects.using(alias).select_related("user").filter(key=""), related=owner)

    def authenticate_credentials(self: Any, key: str) -> tuple[Any, Any]:
        rows = tokens(router.db_for_read(model), key)
        if not rows:
            raise exceptions.AuthenticationFailed(_("Invalid token."))
        if not rows[0].user.is_active:
            raise exceptions.AuthenticationFailed(_("User inactive or deleted."))
        return rows[0].user, rows[0]

    quick: type[BaseAuthentication] = type(cls.__name__, (cls,), {"authenticate_credentials": authenticate_credentials})
    return quick


def get_policy() -> AccessPolicy:
    """The site's policy; one instance per process and setting."""
    policy: AccessPolicy = _instance(settings.ACCESS_POLICY)
    return policy


_instances: dict[str, AccessPolicy] = {}


def _instance(path: str) -> AccessPolicy:
    if path not in _instances:
        _instances[path] = imported(path)()
    return _instances[path]
