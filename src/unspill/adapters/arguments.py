# SPDX-License-Identifier: Apache-2.0
"""Checks what a model gives as arguments against the schema that it was shown, one by one. Believes nothing.

Only what our schemas use is known here. What a value may be in its place, a path for instance, is for the tool to say.
A number above its maximum is taken as that: it is a bound of the person's, and a model that asks for more gets that.
"""

from __future__ import annotations

from collections.abc import Mapping

from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHOWN = 60
_KINDS = {"string": "a text", "boolean": "true or false", "number": "a number", "integer": "a whole number"}


def check_arguments(schema: dict[str, Any], arguments: object) -> dict[str, Any]:
    """Return the arguments that were given; null is as if it was not.

    Raises:
        UsageError: one of them is unknown, missing, or not what the schema says.
    """
    if not isinstance(arguments, Mapping):
        raise UsageError(f"the arguments are not an object: {_shown(arguments)}")
    known = schema["properties"]
    for name in arguments:
        if name not in known:
            there_are = f"There are {', '.join(known)}." if known else "There are none."
            raise UsageError(f"there is no argument {_shown(name)}", remedy=there_are)
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in schema.get("required", ()):
        if name not in given:
            raise UsageError(f"the argument {name} is missing")
    return {name: _checked(name, known[name], value) for name, value in given.items()}


def _checked(name: str, schema: dict[str, Any], value: object) -> Any:
    found = _of_kind(schema, value)
    if found is None:
        kind = _KINDS.get(schema["type"]) or f"a list of at most {schema['maxItems']} texts"
        raise UsageError(f"the argument {name} must be {kind}: {_shown(value)}")
    match schema["type"]:
        case "integer" if not schema["minimum"] <= found <= schema["maximum"]:
            bounds = f"from {schema['minimum']} to {schema['maximum']}"
            raise UsageError(f"the argument {name} must be {bounds}: {_shown(value)}")
        case "number" if "exclusiveMinimum" in schema and not found > schema["exclusiveMinimum"]:
            raise UsageError(f"{name} must be more than {schema['exclusiveMinimum']}: {_shown(value)}")
        case "number" if "maximum" in schema:
            return min(found, schema["maximum"])
        case "string" if len(found) < schema.get("minLength", 0):
            raise UsageError(f"the argument {name} must not be empty")
    return found


def _of_kind(schema: dict[str, Any], value: object) -> Any:
    """Return the value if it is of the schema's type, None if it is not."""
    match schema["type"]:
        case "string":
            return value if isinstance(value, str) and _is_text(value) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "integer":
            return _whole(value)
        case _:
            if not isinstance(value, list) or len(value) > schema["maxItems"]:
                return None
            return value if all(isinstance(one, str) and _is_text(one) for one in value) else None


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_text(text: str) -> bool:
    """Tell whether it has no halves of characters, but for those that stand for bytes of a name that is not UTF-8."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as it is told back: on one line, not at length, whatever it is."""
    try:
        return f"{value!a:.{_SHOWN}}"
    except (ValueError, RecursionError):
        return "something too long to be told"
