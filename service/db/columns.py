"""Columns that hold enums of the contract as their values, and models as JSON."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import JSON, Dialect, String
from sqlalchemy.types import TypeDecorator

from gonogo.contract.canonical import wire_value


class OneOf(TypeDecorator[StrEnum]):
    """A column that holds the value of an enum.

    Args:
        words: the enum.
        length: of the longest value that the column takes.
    """

    impl = String
    cache_ok = True

    def __init__(self, words: type[StrEnum], length: int = 20) -> None:
        super().__init__(length)
        self.words = words

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return what is stored; a value may be given as its text.

        Raises:
            ValueError: it is none of the enum's.
        """
        return None if value is None else self.words(value).value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a word of a value, for as many rows as a list has: a look-up alone."""
        given: dict[str | None, StrEnum | None] = {word.value: word for word in self.words}
        given[None] = None
        return given.__getitem__


class Held(TypeDecorator[Any]):
    """A column that holds a model or a dataclass as JSON; None is NULL.

    Args:
        kind: what is read; fields that it does not know are ignored.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return what is stored."""
        if value is None:
            return None
        return wire_value(self._adapter.dump_python(value, mode="json", by_alias=True))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a model of a value; it raises ValidationError for any other value."""
        read = self.impl_instance.result_processor(dialect, coltype)
        validate = self._adapter.validate_python

        def process(value: Any) -> Any:
            if value is not None and read is not None:
                value = read(value)
            return None if value is None else validate(value)

        return process
