"""What does the demo say that can be typed? Its end to end tests are in tests/e2e."""

import shlex

from gonogo.cli.demo import _in_home


def test_a_home_with_a_blank_in_its_name_is_typed_as_one_word() -> None:
    assert shlex.split(_in_home("/home/me/my runs")) == ["GONOGO_HOME=/home/me/my runs", "gonogo"]
    assert _in_home("/home/me/.gonogo") == "GONOGO_HOME=/home/me/.gonogo gonogo"
