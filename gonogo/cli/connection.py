"""How do commands reach the service, and how do they read `k=v`?"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from gonogo.cli.client import TIMEOUT_S, Client
from gonogo.cli.reach.listeners import check_listener, trusted_of
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.errors import Problem, Rejected, Unavailable
from gonogo.contract.yaml_text import parse_yaml


def connect(timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client of the service that the environment or its home names."""
    return client_of(load_settings(), timeout_s)


def client_of(settings: Settings, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client that says what to do when nobody answers, or the key is refused.

    Each call looks whether another user's process listens at an address that nobody named: the
    service may have gone while a command waits.
    """
    return Client(
        settings.url,
        settings.key(),
        unanswered=settings.service.unanswered(),
        refused=settings.key_refused(),
        timeout_s=timeout_s,
        check=partial(check_place, settings),
    )


def check_place(settings: Settings, key: str = "key") -> None:
    """Refuse the address of a home's service where another user's process listens by now.

    Args:
        settings: of this invocation.
        key: file in the home whose content would be sent there.

    Raises:
        Unavailable: so it is, and nobody has named the address, or given a key for it.
    """
    if settings.api_key is None and not settings.service.is_named:
        try:
            check_listener(settings.url, trusted_of(settings.home / key))
        except Unavailable as error:
            if settings.service.elsewhere is None:
                raise
            raise Unavailable(settings.service.unanswered()) from error


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Return `k=v` arguments as a mapping.

    Raises:
        Rejected: an argument without `=`.
    """
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Rejected(f"{option}: found {pair!r}; expected KEY=VALUE")
        result[name] = value
    return result


def parse_sets(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `--set` arguments with their values read as YAML (20 is a number, true a boolean).

    What a variable of an `env` is set to is a text however it looks (`…env.NSA_TB_DISABLE=0`);
    null takes it away.

    Raises:
        Rejected: an argument without `=`, or a value that is not YAML.
    """
    return {name: _value(name, text) for name, text in parse_pairs(pairs, "--set").items()}


def parse_grid(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `--grid KEY=A,B` arguments as overrides of a campaign's grid.

    Raises:
        Rejected: an argument without `=`, or values that are not YAML.
    """
    found = {}
    for name, text in parse_pairs(pairs, "--grid").items():
        of_variable = name.startswith("env.")
        values = text.split(",") if of_variable else _value(name, f"[{text}]", "--grid")
        found[f"campaign.grid.{name}"] = values
    return found


def _value(name: str, text: str, option: str = "--set") -> Any:
    if name == "fault":
        return text
    of_variable = name.split(".")[-2:-1] == ["env"]
    try:
        found = parse_yaml(text)
    except Rejected as error:
        if of_variable:
            return text
        message = error.problems[0].message
        problem = Problem(path=name, message=f"found {text!r}; {message}", source=option)
        raise Rejected(f"{option} {name}: {message}", problems=(problem,)) from error
    return text if of_variable and found is not None and not isinstance(found, str) else found
