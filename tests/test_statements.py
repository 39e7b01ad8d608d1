"""Statements compiled once read the very rows that the ORM reads, and are seen as any other."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from rest_framework.authentication import TokenAuthentication
from rest_framework.authtoken.models import Token

from agui_django import access
from agui_django.access import AccessPolicy, get_policy
from agui_django.models import Thread
from agui_django.protocol.errors import NotAuthenticated
from agui_django.statements import Select, execute
from tests.test_access import post

pytestmark = pytest.mark.django_db


@pytest.fixture
def token(django_user_model: Any, settings: Any) -> Token:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"]}
    made: Token = Token.objects.create(user=django_user_model.objects.create_user("ada", first_name="Ada"), key="k1")
    return made


def values(row: Any) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_rows_are_those_of_the_orm(django_user_model: Any) -> None:
    owner = django_user_model.objects.create_user("ada")
    for scope, thread_id, archived in (("a", "2", True), ("a", "1", True), ("a", "3", False), ("b", "1", True)):
        Thread.objects.create(scope=scope, thread_id=thread_id, agent="x", archived=archived, owner=owner)
    by_id = Select(lambda alias: Thread.objects.using(alias).filter(scope="").order_by("thread_id"))
    for _ in range(2):  # compiled, then as it is
        found = by_id("default", "a")
        wanted = list(Thread.objects.filter(scope="a").order_by("thread_id"))
        assert [values(row) for row in found] == [values(row) for row in wanted]
        assert [row.thread_id for row in found] == ["1", "2", "3"]
        assert found[0]._state.adding is False
        assert found[0]._state.db == "default"
        assert found[0].owner == owner
    assert by_id("default", "nowhere") == []


def test_a_statement_is_seen_by_those_who_look_on(django_assert_num_queries: Any) -> None:
    seen: list[str] = []

    def look(run: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return run(sql, *rest)

    connection = connections["default"]
    execute(connection, "SELECT %s", [0])
    with connection.execute_wrapper(look):
        assert execute(connection, "SELECT %s", [1]).fetchall() == [(1,)]
    assert seen == ["SELECT %s"]
    with django_assert_num_queries(1):
        execute(connection, "SELECT %s", [1])
    assert execute(connection, "SELECT %s", [2]).fetchall() == [(2,)]


def test_a_token_is_what_rest_framework_finds(token: Token, django_assert_num_queries: Any) -> None:
    policy, request = get_policy(), post(authorization="Token k1")
    for _ in range(2):
        with django_assert_num_queries(1):
            user = policy.authenticate(request)
            assert values(user) == values(token.user)
            assert values(request.auth) == values(token)
            assert request.auth.user is user


def test_a_token_is_refused_as_rest_framework_does(token: Token) -> None:
    policy = get_policy()
    for sent in ("Token k2", "Token", "Token k1 k1", "Bearer k1", ""):
        with pytest.raises(NotAuthenticated) as caught:
            policy.authenticate(post(authorization=sent))
        assert caught.value.extra == {"authenticate": "Token"}
    token.user.is_active = False
    token.user.save()
    with pytest.raises(NotAuthenticated):
        policy.authenticate(post(authorization="Token k1"))
    token.user.is_active = True
    token.user.save()
    assert policy.authenticate(post(authorization="Token k1")) == token.user
    token.delete()
    with pytest.raises(NotAuthenticated):
        policy.authenticate(post(authorization="Token k1"))


def test_what_a_site_changed_stays_as_it_is(token: Token) -> None:
    class Bearer(TokenAuthentication):
        keyword = "Bearer"

    class Own(TokenAuthentication):
        def authenticate_credentials(self, key: str) -> Any:
            return token.user, key

    class Policy(AccessPolicy):
        classes: Any = ()

        def authentication_classes(self) -> Any:
            return self.classes

    policy = Policy()
    policy.classes = [Bearer]
    assert policy.authenticate(post(authorization="Bearer k1")) == token.user
    policy.classes = [Own]
    request = post(authorization="Token whatever")
    assert policy.authenticate(request) == token.user
    assert request.auth == "whatever"
    assert access._quick(Own) is Own
