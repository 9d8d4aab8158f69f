# SPDX-License-Identifier: Apache-2.0
"""Whether Codex will call our hook: it skips one that nobody has trusted without a word, and runs the command plainly.

Reads the files in which Codex 0.166 keeps hooks and the trust in them, and asks Codex itself nothing. What it does not
see is said with the answer.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # The matcher of a group of hooks, and one of its hooks
    IsPrinted = Callable[[object, dict[str, Any]], bool]

_INSTALL = "Put there what `unspill hook codex --settings` prints."
_TRUST = "Start `codex`, type /hooks, switch it on if it is off, and trust it."
_UNSEEN = "Not checked: options of `codex`, its profiles, and settings that your organisation manages."
_OTHERS = "There are other PreToolUse hooks: if one of them rewrites commands as well, the last one to finish wins."


def check_codex(is_printed: IsPrinted) -> str:
    """Return the sentence that says that Codex will call our hook.

    `is_printed` tells whether a hook is what `--settings` prints.

    Raises:
        UsageError: it will not, or that can't be known; with the reason and what to do.
    """
    home = _codex_home()
    path = os.path.join(home, "hooks.json")
    groups = _read_groups(path)
    config = _read_config(os.path.join(home, "config.toml"))
    places = [(group, hook) for group, entry in enumerate(groups) for hook in range(len(entry["hooks"]))]
    ours = [place for place in places if is_printed(groups[place[0]].get("matcher"), _hook(groups, place))]
    if not ours:
        raise UsageError(f"{path} has no hook that this unspill prints", remedy=_INSTALL)
    features = _table(config, "features")
    if features.get("hooks", features.get("codex_hooks")) is False:
        raise UsageError(f"{home}/config.toml switches hooks off", remedy="Remove `hooks = false` under `[features]`.")
    states = _table(_table(config, "hooks"), "state")
    reasons = [_why_skipped(_table(states, _key(path, place)), groups, place) for place in ours]
    if all(reasons):
        raise UsageError(f"Codex skips the hook in {path} without a word: {reasons[0]}", remedy=_TRUST)
    others = len(places) > 1 or _table(config, "hooks").get("PreToolUse")
    told = f"Codex calls the hook in {path}: it is installed and you have trusted it. {_UNSEEN}"
    return f"{told} {_OTHERS}" if others else told


def _why_skipped(state: dict[str, Any], groups: list[dict[str, Any]], place: tuple[int, int]) -> str:
    if state.get("enabled") is False:
        return "it is switched off there."
    trusted = state.get("trusted_hash")
    if trusted is None:
        return "you have not trusted it."
    if trusted != trust_hash(groups[place[0]].get("matcher"), _hook(groups, place)):
        return "it is not what you trusted, or your Codex records that otherwise than 0.166 does."
    return ""


def trust_hash(matcher: object, hook: dict[str, Any]) -> str:
    """Return what Codex records of a hook that is trusted: a digest of all that it does, with the defaults."""
    import hashlib
    import json

    whole = {"event_name": "pre_tool_use", "matcher": matcher, "hooks": [{"async": False, **hook}]}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _key(path: str, place: tuple[int, int]) -> str:
    return f"{path}:pre_tool_use:{place[0]}:{place[1]}"


def _hook(groups: list[dict[str, Any]], place: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = groups[place[0]]["hooks"][place[1]]
    return found


def _codex_home() -> str:
    """Return where Codex keeps its settings, written as Codex writes it: trust is recorded under that name."""
    given = os.environ.get("CODEX_HOME")
    return os.path.realpath(given) if given else os.path.normpath(os.path.expanduser("~/.codex"))


def _read_groups(path: str) -> list[dict[str, Any]]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
    except FileNotFoundError:
        raise UsageError(f"Codex has no hooks: there is no {path}", remedy=_INSTALL) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"Codex can't read {path}, so it calls no hook: {error}", remedy=_INSTALL) from error
    # One field that it does not know, and Codex leaves the whole file out
    unknown = sorted(set(whole) - {"description", "hooks"}) if isinstance(whole, dict) else ["no object"]
    groups = [] if unknown else _table(whole, "hooks").get("PreToolUse", [])
    is_known = isinstance(groups, list) and all(
        isinstance(group, dict)
        and isinstance(group.get("hooks"), list)
        and all(isinstance(hook, dict) for hook in group["hooks"])
        for group in groups
    )
    if unknown or not is_known:
        reason = unknown[0] if unknown else "PreToolUse"
        raise UsageError(f"Codex can't read {path}, so it calls no hook: {reason!a:.60}", remedy=_INSTALL)
    return groups


def _read_config(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read, so nobody can tell whether you trust the hook: {error}") from error


def _table(whole: dict[str, Any], name: str) -> dict[str, Any]:
    found = whole.get(name)
    return found if isinstance(found, dict) else {}
