"""Who is calling and what they may do, asked of the policy as the transports ask it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission
from django.test import Client, RequestFactory
from django.utils.functional import SimpleLazyObject
from rest_framework.authentication import BaseAuthentication, BasicAuthentication
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from agui_django import access
from agui_django.access import AccessPolicy, get_policy
from agui_django.agents.registry import AgentEntry, AgentOptions
from agui_django.protocol.errors import NotAuthenticated, PermissionRefused

pytestmark = pytest.mark.django_db


class Reads(BaseAuthentication):
    """An authenticator that looks at the body, as SessionAuthentication does for a CSRF token."""

    def authenticate(self, request: Request) -> None:
        assert request.data == {}
        assert request.POST == {}


class Fails(BaseAuthentication):
    def authenticate(self, request: Request) -> None:
        raise AuthenticationFailed("secret detail")


class Breaks(BaseAuthentication):
    def authenticate(self, request: Request) -> None:
        raise Throttled


class Basic(BasicAuthentication):
    www_authenticate_realm = "agents"


class Open(AccessPolicy):
    allow_anonymous = True


class OneScope(Open):
    def scope_for(self, user: Any) -> str:
        return "everybody"

    def run_context(self, request: Any) -> dict[str, Any]:
        return {"tenant": request.headers.get("Tenant")}


def post(**headers: str) -> Any:
    return RequestFactory().post("/agui/agents/echo", b"{}", content_type="application/json", headers=headers)


@pytest.fixture
def ada(django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada", password="lovelace")


def test_classes_of_the_setting_else_of_rest_framework(settings: Any) -> None:
    names = [cls.__name__ for cls in AccessPolicy().authentication_classes()]
    assert names == ["TokenAuthentication", "SessionAuthentication"]
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
    assert AccessPolicy().authentication_classes() == [BasicAuthentication]


def test_the_body_is_left_alone(settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": [f"{__name__}.Reads"]}
    request = post()
    with pytest.raises(NotAuthenticated):
        AccessPolicy().authenticate(request)
    assert request.read() == b"{}"


def test_a_challenge_where_the_first_authenticator_gives_one(settings: Any) -> None:
    for classes, challenge in (
        (["Basic", "Reads"], 'Basic realm="agents"'),
        (["Reads", "Basic"], None),
        (["Fails", "Basic"], None),
        ([], None),
    ):
        settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": [f"{__name__}.{name}" for name in classes]}
        with pytest.raises(NotAuthenticated) as refused:
            AccessPolicy().authenticate(post())
        assert refused.value.extra.get("authenticate") == challenge
        assert "secret" not in str(refused.value)


def test_what_is_no_refusal_is_no_refusal(settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": [f"{__name__}.Breaks"]}
    with pytest.raises(Throttled):
        AccessPolicy().authenticate(post())


def test_a_session_needs_its_token(ada: Any) -> None:
    browser = Client()
    browser.force_login(ada)
    cookies = f"sessionid={browser.cookies['sessionid'].value}; csrftoken={'a' * 32}"

    def sent(**headers: str) -> Any:
        request = post(cookie=cookies, **headers)
        from django.contrib.auth.middleware import AuthenticationMiddleware
        from django.contrib.sessions.middleware import SessionMiddleware

        for middleware in (SessionMiddleware, AuthenticationMiddleware):
            middleware(lambda _: None).process_request(request)
        return request

    with pytest.raises(PermissionRefused) as refused:
        AccessPolicy().enter(sent())
    assert "CSRF" not in str(refused.value)
    caller = AccessPolicy().enter(sent(**{"x-csrftoken": "a" * 32}))
    assert caller.scope == f"user:{ada.pk}"
    # the user itself: a lazy one would keep the request alive as long as the run
    assert type(caller.user) is type(ada)


def test_nobody_has_no_scope_unless_the_site_says_so(settings: Any) -> None:
    with pytest.raises(NotAuthenticated):
        AccessPolicy().enter(post())
    with pytest.raises(NotAuthenticated):
        Open().enter(post())
    policy = OneScope()
    caller = policy.with_context(policy.enter(post(Tenant="7")), post(Tenant="7"))
    assert isinstance(caller.user, AnonymousUser)
    assert (caller.scope, caller.extra) == ("everybody", {"tenant": "7"})


@pytest.mark.asyncio
async def test_an_asynchronous_permission_is_left_to_the_loop() -> None:
    async def yes(user: Any) -> bool:
        return bool(user == "ada")

    entry = AgentEntry("a", None, AgentOptions(permission=yes))
    verdict = AccessPolicy().may_run("ada", entry)
    assert not isinstance(verdict, bool)
    assert await verdict is True


def test_permissions(ada: Any, django_user_model: Any) -> None:
    def may(permission: Any) -> Any:
        user = django_user_model.objects.get(pk=ada.pk)
        return AccessPolicy().may_run(user, AgentEntry("a", None, AgentOptions(permission=permission)))

    assert may(None) is True
    assert may("auth.delete_user") is False
    ada.user_permissions.add(Permission.objects.get(codename="delete_user"))
    assert may("auth.delete_user") is True
    assert may(lambda user: user.username == "ada") is True
    assert may(lambda user: None) is False


def test_who_may_answer(ada: Any, django_user_model: Any) -> None:
    make = django_user_model.objects.create_user
    bob, colleague, staff = make("bob"), make("colleague", is_staff=True), make("staff", is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="answer_interrupt"))
    staff.user_permissions.add(Permission.objects.get(codename="answer_interrupt"))

    def who(
        policy: AccessPolicy,
        owner: Any = None,
        user: Any = None,
        scope: str = "",
        permission: str = "",
        may: str = "may_answer",
    ) -> list[str]:
        thread, run = SimpleNamespace(owner_id=owner, scope=scope), SimpleNamespace(user_id=user)
        question: Any = SimpleNamespace(thread=thread, run=run, permission=permission)
        people = [ada, bob, colleague, staff, AnonymousUser()]
        return [person.username or "nobody" for person in people if getattr(policy, may)(person, question)]

    default = AccessPolicy()
    assert who(default, owner=ada.pk, scope=f"user:{ada.pk}") == ["ada", "staff"]
    # In a scope that several share, the one whom the agent asked may, too.
    assert who(default, owner=ada.pk, user=bob.pk, scope="team") == ["ada", "bob", "staff"]
    # Whose user is gone, or the site's own: staff.
    assert who(default, scope="user:4711") == ["staff"]
    assert who(default, scope="site") == ["staff"]
    # Nobody's: whoever shares the scope.
    assert who(OneScope(), scope="everybody") == ["ada", "bob", "colleague", "staff", "nobody"]
    # The agent's own permission comes on top.
    assert who(default, owner=ada.pk, permission="auth.delete_group") == []
    # But whom it was asked may give it up.
    assert who(default, owner=ada.pk, permission="auth.delete_group", may="may_give_up") == ["ada"]
    assert who(default, owner=ada.pk, user=bob.pk, scope="team", may="may_give_up") == ["ada", "bob", "staff"]
    staff.user_permissions.add(Permission.objects.get(codename="delete_group"))
    staff = django_user_model.objects.get(pk=staff.pk)
    assert who(default, owner=ada.pk, permission="auth.delete_group") == ["staff"]


def test_the_sites_policy(settings: Any) -> None:
    assert type(get_policy()) is AccessPolicy
    assert get_policy() is get_policy()
    settings.AGUI_DJANGO = {"ACCESS_POLICY": f"{__name__}.OneScope"}
    assert type(get_policy()).__name__ == "OneScope"
    settings.AGUI_DJANGO = {}
    assert type(get_policy()) is access.AccessPolicy


def test_a_session_s_user_is_kept_without_its_request(ada: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"]}
    request = RequestFactory().get("/agui/")
    request.user = SimpleLazyObject(lambda: ada)
    assert type(AccessPolicy().enter(request).user) is type(ada)
