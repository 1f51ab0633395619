"""What does the demo say that can be typed? Its end to end tests are in tests/e2e."""

import shlex
from pathlib import Path

from gonogo.cli.processes import _in_home, settings_within
from gonogo.cli.settings import load_settings


def test_nothing_leads_to_a_service_that_works_beside_it(tmp_path: Path) -> None:
    elsewhere = {
        "GONOGO_DATABASE_URL": "postgresql://db/gonogo",
        "GONOGO_DATABASE_PASSWORD_FILE": "/run/secrets/db",
        "REDIS_URL": "redis://queue",
        "GONOGO_API_KEY": "k",
        "GONOGO_PUBLIC_URL": "https://gonogo.example",
        "GONOGO_WEBHOOK_URL": "https://on-call.example/hook",
        "GONOGO_WEBHOOK_SECRET_FILE": "/run/secrets/hook",
    }
    found = settings_within(
        load_settings({"HOME": "/home/me", "PATH": "/bin", **elsewhere}), tmp_path
    )
    assert (found.home, found.api_key, found.redis_url) == (tmp_path, None, None)
    assert dict(found.inherited) == {"HOME": "/home/me", "PATH": "/bin"}


def test_what_stays_within_the_home_is_handed_on(tmp_path: Path) -> None:
    said = {"PATH": "/bin", "GONOGO_WORKER_ALLOW": "train.py", "GONOGO_LOCKS": "/run/lock/mine"}
    assert dict(settings_within(load_settings(said), tmp_path).inherited) == said


def test_a_home_with_a_blank_in_its_name_is_typed_as_one_word() -> None:
    assert shlex.split(_in_home("/home/me/my runs")) == ["GONOGO_HOME=/home/me/my runs", "gonogo"]
    assert _in_home("/home/me/.gonogo") == "GONOGO_HOME=/home/me/.gonogo gonogo"
