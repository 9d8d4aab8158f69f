# SPDX-License-Identifier: Apache-2.0
"""One schema of a tool's arguments for several projects: what is true of each, and by name where they differ.

A bound is the widest of them, since it is the chosen project's own that is checked in the end. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TEXT = "description"
_WIDEST = {"maximum": max, "minimum": min}
_SAID = {"minimum": "At least", "maximum": "At most", "default": "By default"}


def join_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema for all projects, given that of each by its name."""
    first = next(iter(schemas.values()))
    properties = {
        key: _join({name: schema["properties"][key] for name, schema in schemas.items()}) for key in first["properties"]
    }
    return {**first, "properties": properties}


def _join(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one argument: as it is where all say the same of it."""
    each = list(given.values())
    first = each[0]
    if all(one == first for one in each):
        return dict(first)
    joined = {key: value for key, value in first.items() if all(one.get(key) == value for one in each)}
    for key, widest in _WIDEST.items():
        if key not in joined and all(key in one for one in each):
            joined[key] = widest(one[key] for one in each)
    differing = [key for key in _SAID if len({one.get(key) for one in each}) > 1]
    return {**joined, _TEXT: " ".join(_told(given, differing))}


def _told(given: Mapping[str, Mapping[str, Any]], differing: Sequence[str]) -> Iterator[str]:
    texts = {name: str(one.get(_TEXT, "")) for name, one in given.items()}
    is_same = len(set(texts.values())) == 1
    if is_same:
        yield next(iter(texts.values()))
    for name, one in given.items():
        said = [] if is_same else [texts[name]]
        said += [f"{_SAID[key]} {_shown(one[key])}." for key in differing if key in one]
        if said:
            yield f"In project {name}: {' '.join(said)}"


def _shown(value: object) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)
