# SPDX-License-Identifier: Apache-2.0
"""What becomes of the changes of a run that is cancelled: by a descriptor, a Ctrl-C or an exception, at any moment."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import Event, Ground, kinds, lasting, printed, processes_with, run_cli
from unspill import Cancelled, LimitReached, OutputChunk, RunResult, Sandbox
from unspill.apply import operate
from unspill.layers.lifecycle import seal_run
from unspill.model.policy import MIB, Limits
from unspill.runner import watch
from unspill.sandbox import running, scan

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

HELD, APPLIED, GONE = "held", "applied", "gone"


@pytest.fixture(autouse=True)
def default_interrupt() -> Iterator[None]:
    """Have a Ctrl-C raise KeyboardInterrupt, also where the suite runs in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cancelled(sandbox: Sandbox, command: str, **options: Any) -> RunResult:
    """Run a command that says when it has written all, and cancel it then."""
    read, write = os.pipe()

    def cancel(event: Event) -> None:
        if isinstance(event, OutputChunk):
            os.write(write, b"x")

    try:
        return sandbox.run(f"{command}; echo written; sleep {lasting()}", cancel_fd=read, on_event=cancel, **options)
    finally:
        os.close(read)
        os.close(write)


def fate_of(ground: Ground, sandbox: Sandbox) -> str:
    if (ground.project / "file").exists():
        assert not sandbox.changes()
        return APPLIED
    return HELD if kinds(sandbox.changes()) == {"file": "added"} else GONE


# What the policy says, what the call says, and what becomes of the changes
FATES: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"after": "apply"}, {}, HELD),
    ({"after": "apply", "after_cancel": "hold"}, {}, HELD),
    ({"after": "apply", "after_cancel": "discard"}, {}, GONE),
    ({"after": "apply", "after_cancel": "apply"}, {}, APPLIED),
    ({"after": "hold", "after_cancel": "apply"}, {}, HELD),
    ({"after": "hold", "after_cancel": "discard"}, {}, HELD),
    ({"after": "discard", "after_cancel": "apply"}, {}, GONE),
    ({"after": "discard", "after_cancel": "hold"}, {}, GONE),
    ({"after": "apply", "after_cancel": "apply"}, {"after": "hold"}, HELD),
    ({"after": "apply", "after_cancel": "apply"}, {"after": "discard"}, GONE),
    ({"after": "hold", "after_cancel": "discard"}, {"after": "apply"}, GONE),
    ({"after": "hold"}, {"after_cancel": "discard"}, GONE),
    ({"after": "apply"}, {"after_cancel": "apply"}, APPLIED),
)


@pytest.mark.parametrize(("settings", "options", "fate"), FATES)
def test_the_changes_of_a_cancelled_run_become_what_the_settings_say(
    ground: Ground, settings: dict[str, Any], options: dict[str, Any], fate: str
) -> None:
    sandbox = ground.sandbox(**settings)
    result = cancelled(sandbox, "echo x > file", **options)
    assert result.outcome == Cancelled()
    assert kinds(result.changes) == {"file": "added"}
    assert (result.held, result.operation is not None) == (fate == HELD, fate == APPLIED)
    assert fate_of(ground, sandbox) == fate
    (run,) = sandbox.runs()
    assert (run.outcome, run.held, run.changed) == (Cancelled(), fate == HELD, 1)
    if fate == APPLIED:
        sandbox.undo()
        assert not (ground.project / "file").exists()


@pytest.mark.parametrize(("own", "project", "fate"), [("", "discard", GONE), ("apply", "hold", HELD)])
def test_the_file_of_a_project_tightens_it(ground: Ground, own: str, project: str, fate: str) -> None:
    ground.configure(f'bwrap = "{os.fsdecode(ground.bwrap)}"\n' + (f'after_cancel = "{own}"' if own else ""))
    ground.write(".unspill.toml", f'after_cancel = "{project}"')
    with Sandbox(ground.project) as sandbox:
        assert cancelled(sandbox, "echo x > file").outcome == Cancelled()
        assert fate_of(ground, sandbox) == fate


def test_the_next_run_sees_what_a_cancelled_one_has_written(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    cancelled(sandbox, "echo one > file")
    assert printed(sandbox.run("cat file; echo two > file")) == "one\n"


def test_a_model_is_told_that_it_is_held(ground: Ground) -> None:
    text = cancelled(ground.sandbox(after="apply"), "echo x > file").text()
    assert "Command was cancelled\n" in text
    assert "Changes (held, not in the project):\n" in text


def test_a_layer_over_its_bound_is_dropped_although_the_run_was_cancelled(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    result = cancelled(sandbox, "head -c 3000000 /dev/zero > file", limits=Limits(layer_bytes=1 * MIB))
    assert result.outcome == LimitReached(limit="layer_bytes", bound=1 * MIB)
    assert "it reached the limit layer_bytes = 1048576" in result.text()
    assert "Changes (discarded, the project is unchanged):" in result.text()
    assert fate_of(ground, sandbox) == GONE
    assert ground.left_behind() == []


def interrupting(function: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Return a function that a person interrupts by Ctrl-C each time when it begins and when it ends."""
    left = [times]

    def doing(*arguments: Any, **named: Any) -> Any:
        is_time = left[0] > 0
        left[0] -= 1
        if is_time:
            os.kill(os.getpid(), signal.SIGINT)
        found = function(*arguments, **named)
        if is_time:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return doing


# The moments after the command has ended: what is called, what its changes become, and what the note says
MOMENTS: dict[str, tuple[Any, str, str, str]] = {
    "while it is scanned": (running, "scan_run", HELD, "was interrupted: "),
    "when it is sealed": (
        running,
        "seal_run",
        APPLIED,
        "Cancelled after the command had ended. Its changes were applied",
    ),
    "when it is applied": (
        operate,
        "perform",
        APPLIED,
        "Cancelled after the command had ended. Its changes were applied",
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_ctrl_c_after_the_command_has_ended_loses_nothing(
    ground: Ground, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, fate, told = MOMENTS[moment]
    monkeypatch.setattr(module, name, interrupting(getattr(module, name)))
    sandbox = ground.sandbox(after="apply")
    with pytest.raises(KeyboardInterrupt) as raised:
        sandbox.run("echo x > file")
    assert fate_of(ground, sandbox) == fate
    assert told in raised.value.__notes__[-1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_waits_until_every_process_is_dead(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    long = lasting()
    wait = watch.Watch._wait_for_end
    monkeypatch.setattr(watch.Watch, "_wait_for_end", interrupting(wait))

    def interrupt(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise KeyboardInterrupt

    sandbox = ground.sandbox(after="apply")
    with pytest.raises(KeyboardInterrupt):
        sandbox.run(f"echo x > file; echo written; sleep {long}", on_event=interrupt)
    assert processes_with(long) == []
    assert fate_of(ground, sandbox) == HELD


@pytest.mark.parametrize("is_deferred", [True, False])
def test_what_an_interrupt_kept_from_being_held_is_held_before_the_next_run(
    ground: Ground, is_deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm of the block that no signal interrupts. Without it a Ctrl-C comes between; nothing is lost."""
    if not is_deferred:
        monkeypatch.setattr(running, "DeferredSignals", threading.Lock)
    monkeypatch.setattr(running, "seal_run", interrupting(seal_run))
    sandbox = ground.sandbox()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("echo x > file")
    assert fate_of(ground, sandbox) == (HELD if is_deferred else GONE)
    assert printed(sandbox.run("cat file")) == "x\n"
    assert fate_of(ground, sandbox) == HELD
    assert [run.number for run in sandbox.interrupted_runs] == ([] if is_deferred else [1])


def test_changes_that_can_not_be_read_are_held_all_the_same(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sandbox = ground.sandbox(after="apply")
    with monkeypatch.context() as patch:
        patch.setattr(running, "scan_run", fail)
        patch.setattr(scan, "scan_run", fail)
        with pytest.raises(OSError, match="Input/output error") as raised:
            sandbox.run("echo x > file")
    assert "Its changes are held. See" in raised.value.__notes__[0]
    assert fate_of(ground, sandbox) == HELD


def test_the_record_of_a_cancelled_run_says_so(ground: Ground) -> None:
    cancelled(ground.sandbox(after="apply"), "echo x > file")
    assert b"Cancelled     1 changed, held" in run_cli("log", cwd=ground.project).stdout
    assert b"A file" in run_cli("show", "1", cwd=ground.project).stdout
