# SPDX-License-Identifier: Apache-2.0
"""What a model can do about a refusal, in words that it can act on: the arguments of its tools, or what to ask for.

The library's own remedies are for the person at a command line. Where one of them is all there is, it is passed on as
what the user can do.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.errors import FileError, FileErrorKind
    from unspill.model.policy import Policy
    from unspill.model.run import Hint
    from unspill.model.traffic import Denial

# Words of a command line, of Python and of the configuration
_OF_PERSONS = ("`unspill", "--", "configuration", "in Python", "in the settings", "pull ", "[permissions]", "[secrets]")
_PATH = re.compile(r"(?:^|[^\w.~/])/[\w.]")
_ASK_AGAIN = "If it needs it, call again with `network` set to true: the user is asked."
_NEVER = "The user's policy gives no more: do without it, or ask the user to change that."
_ELSEWHERE = "Write to the project or to /tmp instead, or tell the user what you need and why."
_MASKED = "Do without it, or ask the user for what you need of it."
_REWORDED = {
    "See `unspill log`.": "The answers of `run`, `write`, `edit` and `undo` name runs and operations.",
    "See `unspill changes` for what can be chosen.": "`changes` lists what can be chosen.",
    "Wait for it, or use another sandbox: --sandbox NAME.": "Wait for it, and try again.",
}
_FILES: dict[FileErrorKind, str] = {
    "not_found": "`list` shows what is there.",
    "is_directory": "`list` shows what is in it.",
    "not_a_directory": "`list` shows what is there.",
    "permission_denied": _ELSEWHERE,
    "exists": "Set `replace` to true to replace it, or use `edit`.",
    "too_large": "Ask for less of it, or use a command.",
    "not_text": "Use a command to look at it.",
    "changed": "Read it again, and then decide what to replace.",
    "not_found_in_file": "Read the file, and give the text exactly as it stands there.",
    "ambiguous": "Give more of the text around it, or set `replace_all` to true.",
}


def advice_of_hint(hint: Hint, policy: Policy) -> str:
    """Return what a model can do about what a hint says."""
    match hint.code:
        case "network-off":
            return _NEVER if policy.permissions.network == "deny" else _ASK_AGAIN
        case "masked-secret":
            return _MASKED
        case "read-only":
            return _ELSEWHERE
    return for_user(hint.remedy)


def advice_of_denial(denial: Denial, policy: Policy) -> str:
    """Return what a model can do about a connection that was refused."""
    match denial.rule:
        case "host" | "port":
            if policy.network.ask:
                return "Do without it, or tell the user why you need it."
            if policy.permissions.network == "deny":
                return f"Do without it, or ask the user to allow {denial.place} for this project."
            return f"{_ASK_AGAIN} Or ask the user to allow {denial.place} for this project."
        case "budget":
            return "Transfer less, or ask the user for more."
    return denial.remedy


def advice_of_file(error: FileError, *, is_masked: bool) -> str:
    """Return what a model can do about a file that can't be had as asked."""
    advice = _FILES.get(error.kind) or for_user(error.remedy)
    if error.kind == "not_found" and is_masked:
        return f"{advice} Files with names of secrets, such as .env, are masked: they seem not to exist."
    return advice


def without_paths(text: str) -> str:
    """Return a message of ours that names no path, or what follows it; nothing where that can't be told apart.

    Where unspill itself fails, its messages are for the person, and their paths those of the person's machine.
    """
    if not _PATH.search(text):
        return text
    head, _colon, reason = text.rpartition(": ")
    return reason if head and not _PATH.search(reason) else ""


def for_user(remedy: str) -> str:
    """Return a remedy whose first sentence with words of a command line is told as something that the user can do."""
    if remedy in _REWORDED:
        return _REWORDED[remedy]
    sentences = remedy.split(". ")
    for at, sentence in enumerate(sentences):
        if any(word in sentence for word in _OF_PERSONS):
            sentences[at] = f"What the user can do: {sentence}"
            break
    return ". ".join(sentences)
