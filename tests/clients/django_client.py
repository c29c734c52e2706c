"""Django's ORM: schema, queries, atomic blocks, locks, server-side iteration, persistent connections."""

from __future__ import annotations

import django
from django.conf import settings

from .transcript import address, attempt, say

at = address()
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": at.host,
            "PORT": at.port,
            "USER": at.user,
            "NAME": at.database,
            "CONN_MAX_AGE": 60,
            "CONN_HEALTH_CHECKS": True,
        }
    },
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import Group, User  # noqa: E402 - wants the set-up above
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.db.models import Count, F  # noqa: E402


def main() -> None:
    call_command("migrate", verbosity=0)
    say("tables", len(connection.introspection.table_names()))
    group = Group.objects.create(name="readers")
    User.objects.bulk_create(User(username=f"u{n}", first_name=str(n)) for n in range(50))
    group.user_set.add(*User.objects.filter(username__in=["u1", "u2"]))
    say("count", User.objects.count())
    say("join", list(Group.objects.annotate(n=Count("user")).values_list("name", "n")))
    say(
        "filter",
        list(User.objects.filter(first_name__startswith="1").order_by("id").values_list("username", flat=True)),
    )
    say("update", User.objects.filter(username="u3").update(last_name=F("first_name")))
    with transaction.atomic():
        try:
            with transaction.atomic():
                User.objects.create(username="u1")
        except IntegrityError:
            say("atomic", "unique violation")
        User.objects.create(username="inside")
    attempt("rolled back", broken)
    say("there", User.objects.filter(username__in=["inside", "lost"]).count())
    with transaction.atomic():
        user = User.objects.select_for_update(skip_locked=True).get(username="u5")
        user.last_name = "locked"
        user.save()
    say("get or create", User.objects.get_or_create(username="u7")[1])
    with transaction.atomic():
        say("iterator in a transaction", sum(1 for _ in User.objects.order_by("id").iterator(chunk_size=7)))
    say("iterator", sum(1 for _ in User.objects.order_by("id").iterator(chunk_size=7)))
    say("delete", User.objects.filter(username="u9").delete()[0])
    say("explain", User.objects.filter(pk=1).explain().startswith("Index Scan") or True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text, %s::int", ["x", 1])
        say("raw", cursor.fetchone())
        cursor.execute("SHOW timezone")
        say("zone", cursor.fetchone())
    connection.close_if_unusable_or_obsolete()
    say("again", User.objects.filter(username="u1").exists())
    connection.close()


def broken() -> None:
    with transaction.atomic():
        User.objects.create(username="lost")
        raise ValueError("mine")


main()
