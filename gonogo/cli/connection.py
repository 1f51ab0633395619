"""How do commands reach the service, and how do they read `k=v`?"""

from collections.abc import Iterable
from typing import Any

from gonogo.cli.client import Client
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import Rejected
from gonogo.contract.yaml_text import parse_yaml


def connect() -> Client:
    """Return a client of the service that the environment names."""
    settings = load_settings()
    return Client(settings.url, settings.key())


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
    """Return `--set` arguments with their values read as YAML (20 is a number, true a boolean)."""
    return {
        name: value if name == "fault" else parse_yaml(value)
        for name, value in parse_pairs(pairs, "--set").items()
    }
