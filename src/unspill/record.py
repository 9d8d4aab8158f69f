# SPDX-License-Identifier: Apache-2.0
"""Frozen, slotted, keyword-only records.

They read and type-check like frozen dataclasses, but importing `dataclasses` costs more than
starting Python does, and each decorated class most of a millisecond: a command-line run of `true`
could not afford them. Nothing on the way of `unspill run` imports dataclasses, enum, re or typing."""

from __future__ import annotations

from _operator import attrgetter, call
from itertools import repeat

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_options):
        return lambda cls: cls


def _getter(fields: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the values of all fields at once: in C, since records are copied and compared everywhere."""
    if len(fields) > 1:
        return attrgetter(*fields)
    return lambda record: tuple(getattr(record, field) for field in fields)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class RecordType(type):
    """Turns the annotations of a class body into slots and keyword arguments."""

    # By field, in their order
    _setters: dict[str, Any]
    _values: Callable[[Any], tuple[Any, ...]]

    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> RecordType:
        own = [field for field, kind in body.get("__annotations__", {}).items() if "ClassVar" not in kind]
        defaults: dict[str, Any] = {}
        fields: list[str] = []
        for base in bases:
            defaults.update(getattr(base, "_defaults", {}))
            fields += getattr(base, "__match_args__", ())
        defaults.update({field: body.pop(field) for field in own if field in body})
        fields += [field for field in own if field not in fields]
        body |= {"__slots__": tuple(own), "__match_args__": tuple(fields), "_defaults": defaults}
        cls = super().__new__(mcls, name, bases, body)
        # The slots' own setters pass by the __setattr__ that freezes the record
        cls._setters = {field: getattr(cls, field).__set__ for field in fields}
        cls._values = _getter(fields)
        return cls


class Record(metaclass=RecordType):
    """Base of every record: equality by type and value, `replace`, a readable `repr`."""

    if TYPE_CHECKING:
        __match_args__: ClassVar[tuple[str, ...]]
    else:

        def __init__(self, **values):
            cls = type(self)
            given = values if len(values) == len(cls._setters) else cls._defaults | values
            try:
                for field, value in given.items():
                    cls._setters[field](self, value)
            except KeyError:
                raise TypeError(f"{cls.__name__} has no {field}") from None
            if len(given) < len(cls._setters):
                missing = [field for field in cls.__match_args__ if field not in given]
                raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")

        def __setattr__(self, field, value):
            raise AttributeError(f"{type(self).__name__} is frozen")

        def __delattr__(self, field):
            raise AttributeError(f"{type(self).__name__} is frozen")

        def __reduce__(self):
            return _rebuild, (type(self), self.as_dict())

    def replace(self, **values: object) -> Self:
        """Return a copy in which the given fields have other values."""
        cls = type(self)
        made = cls.__new__(cls)
        # A setter returns None, so this calls all of them, with the loop in C
        any(map(call, cls._setters.values(), repeat(made), cls._values(self)))
        for field, value in values.items():
            if field not in cls._setters:
                raise TypeError(f"{cls.__name__} has no {field}")
            cls._setters[field](made, value)
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, not deep."""
        cls = type(self)
        return dict(zip(cls.__match_args__, cls._values(self), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(self) is not type(other):
            return NotImplemented
        cls = type(self)
        return cls._values(self) == cls._values(other)

    def __hash__(self) -> int:
        cls = type(self)
        return hash((cls, *cls._values(self)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field}={value!r}" for field, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"


def setters(kind: type[Record]) -> list[Callable[[Record, object], None]]:
    """Return what sets each field, in order: for those few places that make records by the ten thousand."""
    return [getattr(kind, field).__set__ for field in kind.__match_args__]


def _rebuild(kind: type[Record], values: dict[str, Any]) -> Record:
    return kind(**values)
