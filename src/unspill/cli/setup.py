# SPDX-License-Identifier: Apache-2.0
"""`unspill setup`: seal a coding agent by its own settings, prove it, and take the settings out again.

Plan, print, perform: `_plan` says what each file becomes, `--print` shows it, `_write` is the only place that writes.
What was done is in a receipt in the state directory, beside a copy of each file as it was.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from importlib.util import find_spec
from shlex import quote
from tempfile import mkstemp

from unspill.cli.hook import AGENTS, TOLD, check_codex, hook_groups, project_of, trust_hash
from unspill.cli.main import Option, verb
from unspill.cli.output import print_json
from unspill.errors import UsageError
from unspill.host.places import own_words
from unspill.policy.paths import show
from unspill.record import Record
from unspill.sandbox.project import find_own_locations
from unspill.setup.agents import AGENTS_TO_SET_UP, Edit, SetupMeans, choose_mode, find_agent, name_of, plan_edits
from unspill.setup.canary import Verdict, find_program, prove, read_version
from unspill.setup.edit import Setting, merge, parse, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from unspill.cli.main import Arguments
    from unspill.setup.agents import SetupAgent

_NOT_SEALED = 1
_RECEIPT = "receipt.json"
_IN_THE_WAY = (
    "Its settings are in place. Look for what is in the way: settings of this project or of your organisation."
)
# The settings of a project that come before the person's own, the strongest last
_OF_PROJECTS = {"claude-code": (".claude/settings.json", ".claude/settings.local.json")}


class Planned(Record):
    """What one file is now, was without our settings, and becomes. None is a file that does not exist."""

    edit: Edit
    now: str | None
    before: str | None
    after: str | None


class Receipt(Record):
    """What was written for an agent: its mode, each file, and the directories that were made for them."""

    mode: str = ""
    files: tuple[Planned, ...] = ()
    made: tuple[str, ...] = ()

    @property
    def is_trusted(self) -> bool:
        """Tell whether the person has said before that Codex is to trust the hook."""
        return any(setting.path[:2] == ("hooks", "state") for one in self.files for setting in one.edit.settings)


@verb(
    "Make a coding agent run its commands in the sandbox, and prove that it does.",
    Option(
        name="--mode",
        metavar="MODE",
        values="hook|mcp",
        help="hook (before its own shell) or mcp (tools instead of its shell)",
    ),
    Option(name="--check", help="prove it again; nothing is changed"),
    Option(name="--remove", help="put the agent's settings back as they were"),
    Option(name="--print", help="show what would be changed, and change nothing"),
    Option(name="--trust", help="also tell Codex that you trust the hook"),
    positional="|".join(AGENTS_TO_SET_UP),
    most=1,
    examples=(
        "unspill setup claude-code --print",
        "unspill setup codex --print",
    ),
)
def setup(arguments: Arguments) -> int:
    """Set an agent up, check it, or take it back."""
    name = name_of(arguments.words[0]) if arguments.words else ""
    agent = find_agent(name)
    what = arguments.only_one("--check", "--remove", "--print")
    receipt = _load(name)
    if what == "--print":
        arguments.only_one("--print", "--json")
    if what == "--remove":
        return _remove(agent, name, receipt, arguments)
    mode = choose_mode(agent, arguments.value("--mode") or receipt.mode or None)
    if what == "--check" and receipt.mode and mode != receipt.mode:
        remedy = f"Check that one, or set it up anew: unspill setup {name} --mode {mode}"
        raise UsageError(f"{agent.title} is set up in mode {receipt.mode}", remedy=remedy)
    if what == "--check":
        return _report(name, agent, mode, _check(name, agent, mode, receipt, project_of(arguments)), arguments)
    planned = _plan(name, mode, receipt, is_trusted=arguments.flag("--trust") or receipt.is_trusted)
    if what == "--print":
        print("\n".join(_plan_lines(planned)))
        return 0
    project = project_of(arguments)
    if agent.is_proven:
        read_version(agent, find_program(agent, os.environ.get("PATH")), os.environ)
    whole = receipt.replace(mode=mode, files=tuple(planned))
    if not agent.is_proven:
        _perform(name, whole)
        return _report(name, agent, mode, Verdict(), arguments, planned)
    # What is only safe in a sealed agent has to wait until it is one
    _perform(name, whole.replace(files=tuple(map(_safe_part, planned))))
    waits = [setting for one in planned for setting in one.edit.settings if setting.needs_proof]
    verdict = _prove(name, agent, mode, project, waits)
    if verdict.is_sealed and waits:
        _perform(name, _load(name).replace(files=tuple(map(_rest, planned))))
    return _report(name, agent, mode, _with_advice(verdict, name, mode, _load(name)), arguments, planned)


def _safe_part(one: Planned) -> Planned:
    """Return what a file becomes without what is only safe in a sealed agent."""
    edit = one.edit.replace(settings=tuple(setting for setting in one.edit.settings if not setting.needs_proof))
    return one.replace(edit=edit, after=_merged(edit, one.before or "") if edit.settings else one.before)


def _rest(one: Planned) -> Planned:
    """Return what a file becomes with all of its settings. The agent may have written to it meanwhile."""
    now = _read(one.edit.path)
    return one.replace(now=now, after=_merged(one.edit, now or "") if one.edit.settings else now)


def check_all(project: bytes) -> Iterator[tuple[str, Verdict]]:
    """Yield what is found in a project for each agent that is set up and can be checked."""
    for name, agent in AGENTS_TO_SET_UP.items():
        receipt = _load(name)
        if receipt.mode and agent.is_proven:
            yield name, _check(name, agent, receipt.mode, receipt, project)


def _check(name: str, agent: SetupAgent, mode: str, receipt: Receipt, project: bytes) -> Verdict:
    if not agent.is_proven:
        raise UsageError(f"{agent.title} can't be asked to prove it", remedy="See docs/coding-agents.md.")
    try:
        read_version(agent, find_program(agent, os.environ.get("PATH")), os.environ)
    except UsageError as error:
        return Verdict(reason=error.message, advice=error.remedy)
    verdict = _prove(name, agent, mode, project)
    return _with_advice(verdict, name, mode, receipt)


def _prove(name: str, agent: SetupAgent, mode: str, project: bytes, assumed: Sequence[Setting] = ()) -> Verdict:
    program = find_program(agent, os.environ.get("PATH"))
    home = os.fsdecode(find_own_locations().home)
    environ = {**os.environ, "HOME": home}
    verdict = prove(name, agent, mode, program, os.fsdecode(project), environ, told=TOLD, assumed=assumed)
    loose = _find_loose(name, os.fsdecode(project)) if verdict.is_sealed and mode == "hook" else ""
    return verdict.replace(reason=f"it can run commands that no hook sees, by {loose}") if loose else verdict


def _find_loose(name: str, project: str) -> str:
    """Return the setting besides the hooks that is not as it must be, and where; the later of its files wins."""
    for key, value in AGENTS[name].also if name in AGENTS else ():
        own = plan_edits(name, "hook", _means(name, _read, is_trusted=False))[0].path
        found, where = None, own
        for path in (own, *(os.path.join(project, one) for one in _OF_PROJECTS[name])):
            try:
                whole = parse("json", _read(path) or "")
            except UsageError:
                continue
            if key in whole:
                found, where = whole[key], path
        if found != value:
            return f"`{key}` in {where}"
    return ""


def _with_advice(verdict: Verdict, name: str, mode: str, receipt: Receipt) -> Verdict:
    if verdict.is_sealed:
        return verdict
    return verdict.replace(advice=_advice(name, mode, receipt) or verdict.advice or _IN_THE_WAY)


def _advice(name: str, mode: str, receipt: Receipt) -> str:
    """Return what to do about an agent that is not sealed, nothing if its settings are as unspill left them."""
    again = f"unspill setup {name} --mode {mode}"
    if mode == "mcp" and find_spec("mcp") is None:
        return (
            f"The extra `mcp` is not installed. Run in a checkout of unspill: {sys.executable} -m pip install '.[mcp]'"
        )
    if not receipt.files:
        return f"unspill has not set it up. Run: {again}"
    missing = [one.edit.path for one in receipt.files if _is_missing(one)]
    if name == "codex" and mode == "hook" and not any(path.endswith("hooks.json") for path in missing):
        try:
            check_codex()
        except UsageError as error:
            return f"{error.message.rstrip('.')}. {error.remedy} Then run: {again}"
    if missing:
        return f"{missing[0]} no longer has what unspill put there. Run: {again}"
    return next(filter(None, (_find_obstacle(name, one.edit) for one in receipt.files)), "")


def _find_obstacle(name: str, edit: Edit) -> str:
    """Return what in a file of settings makes an agent skip hooks, if that is known."""
    text = _read(edit.path) or ""
    if name == "claude-code":
        try:
            json.loads(text)
        except ValueError:
            return f"Claude Code ignores {edit.path}: it has a comment, or a comma too many. Take that out."
        if parse(edit.form, text).get("disableAllHooks"):
            return f"Remove `disableAllHooks` from {edit.path}."
    if name == "gemini-cli":
        tools = parse(edit.form, text).get("tools")
        for key in ("allowed", "core"):
            if isinstance(tools, dict) and key in tools:
                return f"It could not be tried, because `tools.{key}` in {edit.path} allows only some commands."
    return ""


def _is_missing(one: Planned) -> bool:
    try:
        text = _read(one.edit.path)
        return text is None or merge(one.edit.form, text, one.edit.settings) != text
    except UsageError:
        return True


def _report(
    name: str,
    agent: SetupAgent,
    mode: str,
    verdict: Verdict,
    arguments: Arguments,
    planned: Sequence[Planned] = (),
) -> int:
    changed = [one.edit.path for one in planned if one.now != _read(one.edit.path)]
    if not arguments.flag("--json"):
        for path in changed:
            print(f"Changed {_shown(path)}.")
    if arguments.flag("--json"):
        form = _form(name, mode, verdict, changed)
        print_json(form if agent.is_proven else {**form, "sealed": None})
    elif not agent.is_proven:
        print(f"{agent.title} ({mode}): not proven. unspill can't run it by itself; try a command in it.")
    elif verdict.is_sealed:
        print(f"{agent.title} ({mode}): sealed. A command that it ran could not read your home directory or connect.")
        if not verdict.is_told:
            print("  The model was not told so, and will find out by what is refused.")
            if name == "codex":
                print("  To have it told, trust all hooks of unspill: type /hooks in Codex.")
        if changed:
            print(f"  Restart {agent.title} where it is open: a session keeps the settings that it began with.")
    else:
        print(f"{agent.title} ({mode}): NOT sealed: {_shown(verdict.reason)}")
        if verdict.advice:
            print(f"  {_shown(verdict.advice)}")
    return 0 if verdict.is_sealed else _NOT_SEALED


def _form(name: str, mode: str, verdict: Verdict, changed: list[str]) -> dict[str, Any]:
    return {
        "agent": name,
        "mode": mode,
        "sealed": verdict.is_sealed,
        "told": verdict.is_told,
        "reason": verdict.reason,
        "advice": verdict.advice,
        "changed": changed,
    }


def _shown(text: str) -> str:
    return show(text.encode("utf-8", "surrogateescape"))


def _plan(name: str, mode: str, receipt: Receipt, *, is_trusted: bool) -> list[Planned]:
    """Return what each file becomes. What an earlier set-up has written is taken out first."""
    bases = {one.edit.path: _without(one) for one in receipt.files}

    def base(path: str) -> str | None:
        return bases[path].after if path in bases else _read(path)

    planned = []
    for edit in plan_edits(name, mode, _means(name, base, is_trusted=is_trusted)):
        before = base(edit.path)
        planned.append(Planned(edit=edit, now=_read(edit.path), before=before, after=_merged(edit, before or "")))
    paths = {one.edit.path for one in planned}
    return [*planned, *(one for path, one in bases.items() if path not in paths)]


def _means(name: str, base: Callable[[str], str | None], *, is_trusted: bool) -> SetupMeans:
    program, *words = own_words()
    return SetupMeans(
        home=os.fsdecode(find_own_locations().home),
        environ=os.environ,
        hooks=hook_groups(name) if name in AGENTS else (),
        also=AGENTS[name].also if name in AGENTS else (),
        server={"command": program, "args": [*words, "mcp"]},
        unspill=" ".join(map(quote, own_words())),
        read=base,
        trust=trust_hash if is_trusted else None,
    )


def _without(one: Planned) -> Planned:
    """Return what a file becomes without what an earlier set-up has written."""
    text = _read(one.edit.path)
    after = text
    if text is not None:
        try:
            after = remove(one.edit.form, text, one.edit.settings, one.before or "")
        except UsageError as error:
            raise UsageError(f"{one.edit.path}: {error.message}", remedy=error.remedy) from error
    if one.before is None and not after:
        after = None
    return Planned(edit=one.edit.replace(settings=()), now=text, before=after, after=after)


def _merged(edit: Edit, before: str) -> str:
    try:
        return merge(edit.form, before, edit.settings)
    except UsageError as error:
        raise UsageError(f"{edit.path}: {error.message}", remedy=error.remedy) from error


def _plan_lines(planned: list[Planned]) -> Iterator[str]:
    if all(one.now == one.after for one in planned):
        yield "Everything is in place."
    for one in planned:
        old, new = (one.now or "").splitlines(), (one.after or "").splitlines()
        names = "/dev/null" if one.now is None else one.edit.path, one.edit.path
        yield from map(_shown, difflib.unified_diff(old, new, *names, lineterm=""))


def _remove(agent: SetupAgent, name: str, receipt: Receipt, arguments: Arguments) -> int:
    if not receipt.mode:
        raise UsageError(f"unspill has not set up {agent.title}", remedy="There is nothing to remove.")
    planned = tuple(map(_without, receipt.files))
    _perform(name, receipt.replace(mode="", files=planned))
    if arguments.flag("--json"):
        changed = [one.edit.path for one in planned if one.now != one.after]
        print_json(_form(name, receipt.mode, Verdict(reason="removed"), changed))
        return 0
    left = [one.edit.path for one in planned if f" hook {name}" in (one.after or "")]
    if left:
        print(f"{agent.title}: {_shown(left[0])} still has hooks of unspill, which somebody has changed or put there.")
        print("  Take them out yourself if you don't want them.")
        return _NOT_SEALED
    print(f"{agent.title}: unspill's settings are removed. Its commands are no longer sealed.")
    return 0


def _perform(name: str, receipt: Receipt) -> None:
    """Write each file, and before that what is needed to take it back."""
    place = _place(name)
    made = [*receipt.made]
    for one in receipt.files:
        if one.after is not None:
            made += _missing_directories(os.path.dirname(one.edit.path))
    kept = receipt.replace(files=tuple(one for one in receipt.files if one.edit.settings), made=tuple(made))
    if receipt.mode:
        _make_directories(place)
        for one in kept.files:
            if one.before is not None:
                _replace(os.path.join(place, os.path.basename(one.edit.path)), one.before)
        _replace(os.path.join(place, _RECEIPT), json.dumps(_receipt_form(kept), indent=2))
    for one in receipt.files:
        if one.now != one.after and one.after is None:
            os.unlink(one.edit.path)
        elif one.now != one.after and one.after is not None:
            _make_directories(os.path.dirname(one.edit.path))
            _replace(one.edit.path, one.after)
    if not receipt.mode:
        _forget(place, made)


def _missing_directories(path: str) -> list[str]:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _make_directories(path: str) -> None:
    for directory in reversed(_missing_directories(path)):
        os.mkdir(directory, 0o700)


def _forget(place: str, made: list[str]) -> None:
    """Drop a receipt with its copies, and the directories that were made and are empty again."""
    for name in os.listdir(place):
        os.unlink(os.path.join(place, name))
    os.rmdir(place)
    for directory in sorted(made, key=len, reverse=True):
        if os.path.isdir(directory) and not os.listdir(directory):
            os.rmdir(directory)


def _replace(path: str, text: str) -> None:
    """Write a file at once or not at all, with the mode that it had; a link stays one."""
    path = os.path.realpath(path)
    try:
        mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o600
        descriptor, beside = mkstemp(prefix=".unspill-", dir=os.path.dirname(path))
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        remedy = "Make it writable. `--remove` takes back what was written so far."
        raise UsageError(f"{path} can't be written: {error.strerror}", remedy=remedy) from error


def _read(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read: {error}", remedy="Correct it, or remove it.") from error


def _place(name: str) -> str:
    return os.path.join(os.fsdecode(find_own_locations().state), "setup", name)


def _load(name: str) -> Receipt:
    text = _read(os.path.join(_place(name), _RECEIPT))
    if text is None:
        return Receipt()
    try:
        whole = json.loads(text)
        return Receipt(mode=whole["mode"], files=tuple(map(_file_of, whole["files"])), made=tuple(whole["made"]))
    except (ValueError, KeyError, TypeError) as error:
        remedy = f"The files as they were lie beside it. Put them back, then delete {_place(name)}."
        raise UsageError(f"the receipt in {_place(name)} can't be read", remedy=remedy) from error


def _file_of(form: dict[str, Any]) -> Planned:
    settings = tuple(Setting(**{**one, "path": tuple(one["path"])}) for one in form["settings"])
    edit = Edit(path=form["path"], form=form["form"], settings=settings)
    return Planned(edit=edit, now=None, before=form["before"], after=None)


def _receipt_form(receipt: Receipt) -> dict[str, Any]:
    files = [
        {
            "path": one.edit.path,
            "form": one.edit.form,
            "settings": [setting.as_dict() for setting in one.edit.settings],
            "before": one.before,
        }
        for one in receipt.files
    ]
    return {"mode": receipt.mode, "files": files, "made": list(receipt.made)}
