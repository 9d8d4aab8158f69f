# SPDX-License-Identifier: Apache-2.0
"""Put settings into a text of JSON, TOML or YAML, and take them out again, without touching anything else in it.

Comments, odd formatting and the order of keys stay. A text is never written anew: each setting is one cut or insertion.
What comes out is read back and compared with what was wanted; a text that can't be edited so is refused.
"""

from __future__ import annotations

import json
import re
import tomllib

from unspill.errors import UsageError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_MISSING = object()
_SPACE = " \t\r\n"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_YAML_LINE = re.compile(r"^([A-Za-z][\w-]*):[ \t]*(.*?)[ \t\r]*$", re.MULTILINE)
# A value of more lines than that is none that an agent has
_MOST_LINES = 400
_BY_HAND = "Put it there by hand: `--print` shows what is wanted."


class Setting(Record):
    """`value` at `path`, or one more item of the list there. `needs_proof`: it is only safe in a sealed agent."""

    path: tuple[str, ...]
    value: Any
    is_item: bool = False
    needs_proof: bool = False


class Node(Record):
    """A value of a JSON text and where it stands. `parts` are its members or items, with their keys."""

    start: int
    end: int
    value: Any
    parts: tuple[JsonPart, ...] = ()

    def find(self, key: str) -> JsonPart | None:
        """Return a member; of two with one name the last, as parsers do."""
        return next((part for part in reversed(self.parts) if part.key == key), None)


class JsonPart(Record):
    """A member or an item: `start` is that of its key, if it has one."""

    start: int
    key: str | None
    node: Node


def merge(form: str, text: str, settings: Sequence[Setting]) -> str:
    """Return a text with these settings in it; it is the same text if they are there already.

    Raises:
        UsageError: it can't be read, or not edited without changing something else.
    """
    wanted = parse(form, text)
    for setting in settings:
        if _has(wanted, setting):
            continue
        text = _EDITORS[form][0](text, setting)
        wanted = _with(wanted, setting)
        if _parse_again(form, text) != wanted:
            raise UsageError(f"`{'.'.join(setting.path)}` can't be put into this text", remedy=_BY_HAND)
    return text


def remove(form: str, text: str, settings: Sequence[Setting], before: str) -> str:
    """Return a text without these settings, which `merge` had put into `before`. Whatever else was changed stays.

    Raises:
        UsageError: it can't be read, or not edited without changing something else.
    """
    if merge(form, before, settings) == text:
        return before
    old = parse(form, before)
    for setting in reversed(settings):
        now = parse(form, text)
        if _has(old, setting) or not _has(now, setting):
            # It was there before, or somebody has changed it since
            continue
        text = _EDITORS[form][1](text, setting, before)
        if _parse_again(form, text) != _without(now, setting, old):
            raise UsageError(f"`{'.'.join(setting.path)}` can't be taken out of this text", remedy="Remove it by hand.")
    last, line = before.rpartition("\n")[2], _newline(text)
    # A last line that had no end got one when something was put behind it
    return text.removesuffix(line) if last and text.endswith(last + line) else text


def parse(form: str, text: str) -> dict[str, Any]:
    """Return what a text says, nothing for an empty one.

    Raises:
        UsageError: it can't be read, or is no table of settings.
    """
    try:
        found = _PARSERS[form](text)
    except (ValueError, IndexError, RecursionError) as error:
        raise UsageError(
            f"the settings can't be read as {form.upper()}: {error}", remedy="Correct the file."
        ) from error
    if not isinstance(found, dict):
        raise UsageError("the settings are no object", remedy="Correct the file.")
    return found


def _parse_again(form: str, text: str) -> dict[str, Any] | None:
    try:
        return parse(form, text)
    except UsageError:
        return None


def look_up(value: Any, path: Sequence[str]) -> Any:
    """Return what is at a path, None if there is nothing."""
    found = _at(value, path)
    return None if found is _MISSING else found


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _has(whole: dict[str, Any], setting: Setting) -> bool:
    found = _at(whole, setting.path)
    if setting.is_item:
        return isinstance(found, list) and setting.value in found
    # `false` and 0 are not the same setting
    return type(found) is type(setting.value) and bool(found == setting.value)


def _with(whole: dict[str, Any], setting: Setting) -> dict[str, Any]:
    key, rest = setting.path[0], setting.path[1:]
    if rest:
        inner = whole.get(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"`{key}` is no table of settings", remedy=_BY_HAND)
        return {**whole, key: _with(inner, setting.replace(path=rest))}
    if not setting.is_item:
        return {**whole, key: setting.value}
    items = whole.get(key, [])
    if not isinstance(items, list):
        raise UsageError(f"`{key}` is no list", remedy=_BY_HAND)
    return {**whole, key: [*items, setting.value]}


def _without(whole: dict[str, Any], setting: Setting, old: Any) -> dict[str, Any]:
    key, rest = setting.path[0], setting.path[1:]
    before = old.get(key, _MISSING) if isinstance(old, dict) else _MISSING
    if rest:
        left: Any = _without(whole[key], setting.replace(path=rest), before)
    elif setting.is_item:
        index = _last_index(whole[key], setting.value)
        left = [*whole[key][:index], *whole[key][index + 1 :]]
    else:
        left = before
    if left is _MISSING or (before is _MISSING and not left and (rest or setting.is_item)):
        return {name: value for name, value in whole.items() if name != key}
    return {**whole, key: left}


def _last_index(items: list[Any], value: Any) -> int:
    return len(items) - 1 - items[::-1].index(value)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def parse_json(text: str) -> Any:
    """Return what a JSON text says."""
    return read_json(text).value if text.strip("\ufeff" + _SPACE) else {}


def read_json(text: str) -> Node:
    """Return the values of a JSON text with their places."""
    node = _read_node(text, _skip(text, 1 if text.startswith("\ufeff") else 0))
    if _skip(text, node.end) != len(text):
        raise ValueError(f"there is more at character {_skip(text, node.end)}")
    return node


def _skip(text: str, at: int) -> int:
    """Return where the next word is, past spaces and comments."""
    while at < len(text):
        if text[at] in _SPACE:
            at += 1
        elif text.startswith("//", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            at = text.index("*/", at + 2) + 2
        else:
            break
    return at


def _read_node(text: str, at: int) -> Node:
    if text[at] in "{[":
        return _read_parts(text, at, text[at])
    value, end = json.JSONDecoder().raw_decode(text, at)
    return Node(start=at, end=end, value=value)


def _read_parts(text: str, start: int, opening: str) -> Node:
    closing = "}" if opening == "{" else "]"
    parts: list[JsonPart] = []
    at = _skip(text, start + 1)
    while text[at] != closing:
        begin, key = at, None
        if opening == "{":
            named = _read_node(text, at)
            at = _skip(text, named.end)
            if not isinstance(named.value, str) or text[at] != ":":
                raise ValueError(f"no member at character {begin}")
            key, at = named.value, _skip(text, at + 1)
        node = _read_node(text, at)
        parts.append(JsonPart(start=begin, key=key, node=node))
        at = _skip(text, node.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != closing:
            raise ValueError(f"no comma at character {at}")
    values = [part.node.value for part in parts]
    value = values if opening == "[" else {part.key: part.node.value for part in parts}
    return Node(start=start, end=at + 1, value=value, parts=tuple(parts))


def _put_json(text: str, setting: Setting) -> str:
    if not text.strip("\ufeff" + _SPACE):
        return json.dumps(_with({}, setting), indent=2, ensure_ascii=False) + "\n"
    node, path = read_json(text), setting.path
    value: Any = setting.value
    while path:
        found = node.find(path[0])
        if found is None:
            break
        node, path = found.node, path[1:]
    if not path and not setting.is_item:
        return text[: node.start] + _render(text, node.start, value) + text[node.end :]
    if setting.is_item and path:
        value = [value]
    for key in reversed(path[1:]):
        value = {key: value}
    return _insert_part(text, node, path[0] if path else None, value)


def _insert_part(text: str, node: Node, key: str | None, value: Any) -> str:
    """Return a text with one more member or item at the end of a container."""
    line = _newline(text)
    if not node.parts:
        base = _indent_at(text, node.start)
        inner = base + _unit(text)
        part = _render_part(text, inner, key, value)
        at = node.start + 1
        return f"{text[:at]}{line}{inner}{part}{line}{base}{text[at:]}"
    first, last = node.parts[0], node.parts[-1].node.end
    comma = _skip(text, last)
    has_comma = text[comma] == ","
    if "\n" not in text[node.start : first.start]:
        part = (f"{json.dumps(key, ensure_ascii=False)}: " if key is not None else "") + _dump(value)
        at = comma + 1 if has_comma else last
        return f"{text[:at]}{'' if has_comma else ','} {part}{',' if has_comma else ''}{text[at:]}"
    inner = _indent_at(text, first.start)
    part = _render_part(text, inner, key, value)
    at = _past_comment(text, comma + 1 if has_comma else last)
    if has_comma:
        return f"{text[:at]}{line}{inner}{part},{text[at:]}"
    return f"{text[:last]},{text[last:at]}{line}{inner}{part}{text[at:]}"


def _past_comment(text: str, at: int) -> int:
    """Return the end of the comments that follow on the same line: they belong to what stands before them."""
    end = at
    while at < len(text) and text[at] not in "\r\n":
        if text[at] in " \t":
            at += 1
        elif text.startswith("//", at):
            at = min(found for found in (text.find("\r", at), text.find("\n", at), len(text)) if found >= 0)
            end = at
        elif text.startswith("/*", at):
            end = at = text.index("*/", at + 2) + 2
        else:
            break
    return end


def _cut_json(text: str, setting: Setting, before: str) -> str:
    old = read_json(before) if before.strip("\ufeff" + _SPACE) else Node(start=0, end=0, value={})
    containers = [read_json(text)]
    olds: list[Node | None] = [old]
    parts: list[JsonPart] = []
    for key in setting.path:
        part = containers[-1].find(key)
        assert part is not None
        parts.append(part)
        containers.append(part.node)
        known = olds[-1].find(key) if olds[-1] is not None else None
        olds.append(known.node if known else None)
    if setting.is_item:
        items = containers[-1]
        parts.append(items.parts[_last_index(items.value, setting.value)])
    elif olds[-1] is not None:
        old_node, new = olds[-1], containers[-1]
        return text[: new.start] + before[old_node.start : old_node.end] + text[new.end :]
    depth = len(parts) - 1
    # A container that was made for this goes with it
    while depth > 0 and len(containers[depth].parts) == 1 and olds[depth] is None:
        depth -= 1
    return _cut_part(text, containers[depth], parts[depth])


def _cut_part(text: str, node: Node, part: JsonPart) -> str:
    index = next(number for number, one in enumerate(node.parts) if one is part)
    end = part.node.end
    after = _skip(text, end)
    start = len(text[: part.start].rstrip(_SPACE))
    if len(node.parts) == 1:
        end = after + 1 if text[after] == "," else end
        tail = _newline(text) + _indent_at(text, node.start)
        return text[:start] + text[end + (len(tail) if text.startswith(tail, end) else 0) :]
    if text[after] == ",":
        # At the beginning, the space before it is that of the next one
        return text[:start] + text[end:after] + text[after + 1 :]
    comma = _skip(text, node.parts[index - 1].node.end)
    return text[:comma] + text[comma + 1 : start] + text[end:]


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """Return by what a text indents: what its first member has."""
    node = read_json(text)
    inner = _indent_at(text, node.parts[0].start) if node.parts else ""
    return inner or "  "


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _render_part(text: str, indent: str, key: str | None, value: Any) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    name = f"{_dump(key)}: " if key is not None else ""
    return name + (_newline(text) + indent).join(lines)


def _render(text: str, at: int, value: Any) -> str:
    return _render_part(text, _indent_at(text, at), None, value)


class Statement(Record):
    """A header or a key of a TOML text, with its place. `value_start` is where the value of a key begins."""

    start: int
    end: int
    path: tuple[str, ...]
    value_start: int = 0


def read_toml(text: str) -> list[Statement]:
    """Return the headers and keys of a TOML text with their full names. What tomllib does not read is left out."""
    found: list[Statement] = []
    table: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end].strip()
        if line.startswith("["):
            table = _header_name(line)
            found.append(Statement(start=at, end=end, path=table))
        elif line and not line.startswith("#"):
            end = _value_end(text, at)
            equals = _equals(text, at, end)
            name = _only_path(tomllib.loads(text[at:equals] + "= 0"))
            start = equals + 1 + len(text[equals + 1 : end]) - len(text[equals + 1 : end].lstrip(" \t"))
            found.append(Statement(start=at, end=end, path=(*table, *name), value_start=start))
        at = end
    return found


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _header_name(line: str) -> tuple[str, ...]:
    value: Any = tomllib.loads(line)
    if line.startswith("[["):
        # No setting of ours is in such a list, so its name only has to differ
        return (line,)
    return _only_path(value)


def _only_path(value: Any) -> tuple[str, ...]:
    path: list[str] = []
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        path.append(key)
    return tuple(path)


def _value_end(text: str, at: int) -> int:
    """Return the end of a key with its value, which may have several lines."""
    end = at
    for _ in range(_MOST_LINES):
        end = _line_end(text, end)
        try:
            tomllib.loads(text[at:end])
        except ValueError:
            continue
        return end
    raise ValueError("a value is too long")


def _equals(text: str, at: int, end: int) -> int:
    """Return where a key ends: at the first `=` that is not in its name."""
    for place in range(at, end):
        if text[place] == "=":
            try:
                tomllib.loads(text[at:place] + "= 0")
            except ValueError:
                continue
            return place
    raise ValueError("a key has no value")


def _put_toml(text: str, setting: Setting) -> str:
    statements, line = read_toml(text), _newline(text)
    path, value = setting.path, setting.value
    if isinstance(value, dict):
        block = line.join(
            [f"[{_toml_name(path)}]", *(f"{_toml_name((key,))} = {_toml(one)}" for key, one in value.items())]
        )
        span = _block(statements, path)
        if span is not None:
            return text[: span[0]] + block + line + text[span[1] :]
        return _append_block(text, block)
    entry = f"{_toml_name(path[-1:])} = {_toml(value)}"
    known = _find_key(statements, path)
    if known is not None:
        return text[: known.value_start] + _toml(value) + _after_value(text, known) + text[known.end :]
    header = next((one for one in statements if one.path == path[:-1] and not one.value_start), None)
    if header is not None:
        start = text[: header.end] + ("" if text[: header.end].endswith("\n") else line)
        return f"{start}{entry}{line}{text[header.end :]}"
    is_dotted = any(one.value_start and one.path[:-1] == path[:-1] for one in statements)
    if len(path) == 1 or is_dotted:
        return f"{_toml_name(path)} = {_toml(value)}{line}{text}"
    return _append_block(text, f"[{_toml_name(path[:-1])}]{line}{entry}")


def _append_block(text: str, block: str) -> str:
    line = _newline(text)
    between = "" if not text else line if text.endswith("\n") else line + line
    return f"{text}{between}{block}{line}"


def _cut_toml(text: str, setting: Setting, before: str) -> str:
    statements, path = read_toml(text), setting.path
    old = read_toml(before)
    if isinstance(setting.value, dict):
        span, old_span = _block(statements, path), _block(old, path)
        assert span is not None
        if old_span is not None:
            return text[: span[0]] + before[old_span[0] : old_span[1]] + text[span[1] :]
        return _cut_lines(text, *span)
    known, was = _find_key(statements, path), _find_key(old, path)
    assert known is not None
    if was is not None:
        return text[: known.value_start] + before[was.value_start : was.end] + text[known.end :]
    span = _block(statements, path[:-1]) if len(path) > 1 else None
    is_alone = span is not None and len([one for one in statements if span[0] <= one.start < span[1]]) == 2
    if is_alone and span is not None and _block(old, path[:-1]) is None:
        return _cut_lines(text, *span)
    return text[: known.start] + text[known.end :]


def _cut_lines(text: str, start: int, end: int) -> str:
    """Return a text without a block, and without the empty line before it."""
    line = _newline(text)
    start -= len(line) if text[:start].endswith(line + line) or text[:start] == line else 0
    return text[:start] + text[end:]


def _block(statements: list[Statement], path: tuple[str, ...]) -> tuple[int, int] | None:
    """Return where a table is written down: its header and the keys below that."""
    for index, header in enumerate(statements):
        if header.path == path and not header.value_start:
            end = header.end
            for one in statements[index + 1 :]:
                if not one.value_start:
                    break
                end = one.end
            return header.start, end
    return None


def _find_key(statements: list[Statement], path: tuple[str, ...]) -> Statement | None:
    return next((one for one in statements if one.path == path and one.value_start), None)


def _after_value(text: str, statement: Statement) -> str:
    """Return what stands behind a value: a comment, the end of the line."""
    rest = text[statement.value_start : statement.end]
    value = tomllib.loads("x = " + rest)["x"]
    for end in range(len(rest) + 1):
        if rest[end : end + 1] in ("", " ", "\t", "#", "\r", "\n"):
            try:
                if tomllib.loads("x = " + rest[:end])["x"] == value:
                    return rest[end:]
            except ValueError:
                continue
    return _newline(text)


def dump_toml(value: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return settings as a TOML text.

    Raises:
        ValueError: there is something in them that this does not write: a date, a list of tables.
    """
    plain = {key: one for key, one in value.items() if not isinstance(one, dict)}
    try:
        lines = [f"{_toml_name((key,))} = {_toml(one)}\n" for key, one in plain.items()]
    except TypeError as error:
        raise ValueError(str(error)) from None
    header = [f"[{_toml_name(path)}]\n"] if path and (plain or not value) else []
    tables = [dump_toml(one, (*path, key)) for key, one in value.items() if isinstance(one, dict)]
    text = "".join((*header, *lines, *tables))
    if not path and tomllib.loads(text) != value:
        raise ValueError("a list of tables")
    return text


def _toml_name(path: tuple[str, ...]) -> str:
    return ".".join(key if _BARE_KEY.fullmatch(key) else _toml(key) for key in path)


def _toml(value: Any) -> str:
    # A text of JSON is one of TOML but for one character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse_yaml(text: str) -> dict[str, str]:
    """Return the settings at the top of a YAML text, as they are written; no other part of it is looked at."""
    return {match[1]: match[2] for match in _YAML_LINE.finditer(text)}


def _put_yaml(text: str, setting: Setting) -> str:
    (key,) = setting.path
    line, entry = _newline(text), f"{key}: {setting.value}"
    for match in _YAML_LINE.finditer(text):
        if match[1] == key:
            return text[: match.start()] + entry + text[match.end(2) :]
    return f"{text}{'' if not text or text.endswith(line) else line}{entry}{line}"


def _cut_yaml(text: str, setting: Setting, before: str) -> str:
    (key,) = setting.path
    (match,) = [one for one in _YAML_LINE.finditer(text) if one[1] == key]
    old = next((one for one in _YAML_LINE.finditer(before) if one[1] == key), None)
    if old is not None:
        return text[: match.start()] + before[old.start() : old.end(2)] + text[match.end(2) :]
    return text[: match.start()] + text[_line_end(text, match.start()) :]


_PARSERS: dict[str, Callable[[str], Any]] = {"json": parse_json, "toml": tomllib.loads, "yaml": _parse_yaml}
_EDITORS = {"json": (_put_json, _cut_json), "toml": (_put_toml, _cut_toml), "yaml": (_put_yaml, _cut_yaml)}
