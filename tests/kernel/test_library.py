# SPDX-License-Identifier: Apache-2.0
"""unspill as a library: what a program of the user's gets, in the types that it expects."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import unspill
from tests.support import Ground
from unspill import Hunks, Sandbox, SandboxFiles, UsageError
from unspill.record import Record

pytestmark = pytest.mark.kernel
EXAMPLE = Path(__file__).parents[2] / "examples" / "library.py"
SAID = """\
ok: hello
  added greeting
exit code 1: cat: missing: No such file or directory
log: [(2, 0), (1, 1)]
blame: ['hello']
file: hello
held: ['dropped', 'kept']
applied: ['kept']
undone: ['kept'] []
said: ['one', 'two']
exit codes: [3, 4]
ok: PROJECT
error: usage
closed: this sandbox is closed Use it inside its `with` block, or open another Sandbox.
"""
# All that a caller may do with a sandbox that takes an argument
CALLS: dict[str, Callable[[Sandbox], object]] = {
    "add_prompt": lambda sandbox: sandbox.add_prompt("x"),
    "blame": lambda sandbox: sandbox.blame("a"),
    "explain": lambda sandbox: sandbox.explain("true"),
    "find_changers": lambda sandbox: sandbox.find_changers("a"),
    "find_operation": lambda sandbox: sandbox.find_operation(1),
    "find_run": lambda sandbox: sandbox.find_run(1),
    "note_edit": lambda sandbox: sandbox.note_edit("call", ["a"]),
    "operation_changes": lambda sandbox: sandbox.operation_changes(1),
    "operations_since": lambda sandbox: sandbox.operations_since(0),
    "plan": lambda sandbox: sandbox.plan("true"),
    "record_edit": lambda sandbox: sandbox.record_edit("call", asked_by="person"),
    "restore": lambda sandbox: sandbox.restore("a"),
    "run": lambda sandbox: sandbox.run("true"),
    "traffic": lambda sandbox: sandbox.traffic(1),
}
# These need no store, and can be called again
HARMLESS = {"close", "end_reuse", "playground", "trees"}
# These need what only an open one can have given, or say so with the first command
LATER = {"backups", "describe_interrupted", "held_of", "tell_flagged", "live", "live_for", "arun", "stream"}


def public_methods() -> list[str]:
    return [name for name, value in inspect.getmembers(Sandbox, inspect.isfunction) if not name.startswith("_")]


def test_the_example_does_what_it_says(ground: Ground) -> None:
    words = [sys.executable, "-P", os.fspath(EXAMPLE), os.fspath(ground.project)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.replace(os.fspath(ground.project), "PROJECT") == SAID


def test_dir_lists_what_can_be_used() -> None:
    assert {"Sandbox", "RunResult", "Policy", "Live", "UsageError"} <= set(dir(unspill))


def test_nothing_that_a_caller_touches_is_of_any_type() -> None:
    """Beyond what the type checker sees of the example: every public name, method and field."""
    found = []
    # As of the standard library's records
    allowed = {"as_dict"}
    for name in unspill.__all__[1:]:
        value = getattr(unspill, name)
        members = {field: kind for kind in inspect.getmro(value) for field, kind in kind.__dict__.items()}
        annotated = dict(value.__annotations__) if issubclass(value, Record) else {}
        for member, what in members.items():
            if callable(what) and not member.startswith("_") and member not in allowed:
                annotated |= {f"{member}.{word}": text for word, text in getattr(what, "__annotations__", {}).items()}
        found += [f"{name}.{member}" for member, text in annotated.items() if re.search(r"\bAny\b", str(text))]
    assert found == []


@pytest.mark.parametrize("method", sorted(set(public_methods()) - HARMLESS - LATER))
def test_a_closed_sandbox_says_that_it_is_closed(ground: Ground, method: str) -> None:
    ground.write("a", "1\n")
    sandbox = ground.sandbox()
    sandbox.close()
    with pytest.raises(UsageError, match="this sandbox is closed") as refused:
        CALLS[method](sandbox) if method in CALLS else call(sandbox, method)
    assert "open another" in refused.value.remedy


def call(sandbox: Sandbox, method: str) -> object:
    do: Callable[[], object] = getattr(sandbox, method)
    return do()


def test_a_closed_sandbox_says_so_to_its_live_and_awaited_commands(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.close()
    with pytest.raises(UsageError, match="this sandbox is closed"):
        sandbox.live().run("true")
    with pytest.raises(UsageError, match="this sandbox is closed"):
        asyncio.run(sandbox.arun("true"))


def test_every_method_is_tried_on_a_closed_sandbox() -> None:
    needs = {name for name in public_methods() if _needs_more(getattr(Sandbox, name))}
    assert needs - HARMLESS - LATER == set(CALLS)


def _needs_more(method: Callable[..., object]) -> bool:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return any(one.default is inspect.Parameter.empty and one.kind not in kinds for one in parameters)


def test_what_a_closed_sandbox_was_opened_with_can_still_be_read(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        pass
    sandbox.close()
    assert (sandbox.directory, sandbox.name) == (os.fspath(ground.project), "default")
    assert repr(sandbox) == f"Sandbox({os.fspath(ground.project)!r}, name='default')"
    with pytest.raises(UsageError, match="this sandbox is closed"):
        SandboxFiles(sandbox).read("a")


@pytest.mark.parametrize("name", ["plain", "with space", "ümlaut", os.fsdecode(b"not\xffutf8"), "new\nline"])
@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_a_path_goes_in_and_out_as_text_bytes_or_path(
    ground: Ground, name: str, kind: Callable[[str], str | bytes | Path]
) -> None:
    sandbox = ground.sandbox()
    sandbox.run(["touch", kind(name), "other"], after="hold")
    assert sorted(change.name for change in sandbox.changes()) == sorted([name, "other"])
    assert os.fspath(ground.project / name) in list(sandbox.changes().names())
    # One path, not its letters
    operation = sandbox.apply(kind(name))
    assert operation.names == (os.fspath(ground.project / name),)
    assert [change.name for change in sandbox.changes()] == ["other"]
    assert sandbox.blame(kind(name)) == ()
    assert sandbox.discard([kind("other")]).changed == 1


def test_awaited_runs_take_every_option_of_a_run_by_its_type() -> None:
    """But for what they do themselves, the old name, and a terminal, which nobody can wait for in a loop."""
    source = inspect.getsource(sys.modules[Sandbox.__module__])
    listed = re.search(r"class RunOptions\(.*?class RunOptionsWithEvents", source, re.DOTALL)
    assert listed is not None
    typed = set(re.findall(r"^        (\w+): ", listed[0], re.MULTILINE))
    options = set(inspect.signature(Sandbox.run).parameters) - {"self", "command"}
    assert options - typed == {"on_event", "cancel_fd", "attach"}
    assert typed <= options


def test_output_is_read_as_text_whatever_its_bytes_are(ground: Ground) -> None:
    result = ground.sandbox().run(r"printf 'a\377b\n'; echo bad >&2; exit 2")
    assert (result.stdout.text, result.stderr.text) == ("a\\xffb\n", "bad\n")
    assert result.stdout.head == b"a\xffb\n"


def test_left_out_output_is_marked_in_the_text(ground: Ground) -> None:
    sandbox = ground.sandbox()
    limits = sandbox.policy.limits.replace(kept_bytes=1000)
    text = sandbox.run("seq 10000", limits=limits).stdout.text
    assert text.startswith("1\n2\n")
    assert text.endswith("\n10000\n")
    assert re.search(r"\n// ... \(\d+ bytes left out\) ...\n", text)


def test_a_skipped_path_has_a_name(ground: Ground) -> None:
    sandbox = ground.sandbox()
    sandbox.run("mkdir -p .vscode; echo x > .vscode/tasks.json", after="hold")
    assert {left.name for left in sandbox.apply().left} >= {".vscode/tasks.json"}
    assert Hunks(path=b"x", numbers=(1,)).path == b"x"
