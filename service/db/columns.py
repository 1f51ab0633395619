"""How do columns hold the contract's words? Enums as their values, documents as JSON.

What a row gives is the enum or the model itself, never its text. What earlier releases wrote is
read by the same models, which ignore what they do not know; what they lack has its default.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel
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

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        """Return what a row gives."""
        return None if value is None else self.words(value)


class Held(TypeDecorator[BaseModel]):
    """A column that holds a model as JSON; NULL is None.

    Args:
        model: what is read; it ignores fields that it does not know.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(none_as_null=True)
        self.model = model

    def process_bind_param(self, value: BaseModel | None, dialect: Dialect) -> Any:
        """Return what is stored."""
        return None if value is None else wire_value(value.model_dump(mode="json"))

    def process_result_value(self, value: Any, dialect: Dialect) -> BaseModel | None:
        """Return what a row gives.

        Raises:
            ValidationError: the row was written by something else.
        """
        return None if value is None else self.model.model_validate(value)
