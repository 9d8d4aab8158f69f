# SPDX-License-Identifier: Apache-2.0
"""The explanation names everything that is in the plan and shows no control character."""

from __future__ import annotations

from tests.unit.plan.given import HOME, PROJECT, cache, facts, given, home, places, stack
from unspill.model.policy import Limits, Policy
from unspill.plan.build import build_plan
from unspill.plan.explain import describe, explain, paste_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def explained(**values: Any) -> str:
    return explain(build_plan(given(**values)), facts())


def test_every_mount_is_there_with_its_reason() -> None:
    plan = build_plan(given(places=places(home=home(b".cargo/bin")), caches=(cache(HOME + b"/.cache/pip"),)))
    text = explain(plan, facts()).splitlines()
    for operation in plan.mounts:
        assert any(describe(operation) in line and line.endswith(operation.why) for line in text), operation


def test_variables_are_named_without_their_values() -> None:
    text = explained(extra_environ=((b"MY_TOKEN", b"canary"),))
    summary, _, command = text.partition("sh <<'UNSPILL'")
    assert "MY_TOKEN" in summary
    assert "canary" not in summary
    assert "--setenv MY_TOKEN canary" in command


def test_limits_have_units() -> None:
    text = explained(policy=Policy(limits=Limits(wall_s=1.5, layer_bytes=None, file_bytes=1000)))
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    for row in (
        ["wall_s", "1.5"],
        ["layer_bytes", "unlimited"],
        ["file_bytes", "1000 bytes"],
        ["memory_bytes", "4 GiB"],
    ):
        assert row in lines


def test_held_layers_are_counted() -> None:
    assert "copy-on-write over 2 held layers, writes to" in explained(stacks=(stack(PROJECT, sealed=2),))
    assert "copy-on-write over 1 held layer, writes to" in explained(stacks=(stack(PROJECT, sealed=1),))
    assert "copy-on-write, writes to" in explained()


def test_the_filter_is_explained() -> None:
    assert "system calls: a filter of 2 instructions refuses what no namespace covers" in explained(filter=bytes(16))
    assert "system calls: not filtered" in explained(filter=b"")
    assert "strict: tracing and Unix sockets too; no Landlock" in explained(policy=Policy(profile="strict"))
    assert "Landlock" not in explained()


def test_warnings_are_shown() -> None:
    assert "note: /opt is not shown" in explained(places=places(mounted=(b"/opt/x",)))


def test_no_control_character_is_printed() -> None:
    live = HOME + b"/\x1b]0;x\x07\n\xff" + "\u202e".encode()
    text = explained(stacks=(stack(live),), cwd=live, argv=(b"sh", b"-c", b"echo \x1b[2J\n"))
    assert [line for line in text.split("\n") if not line.isprintable()] == []


def test_the_command_is_all_that_follows_the_last_empty_line() -> None:
    plan = build_plan(given())
    assert explain(plan, facts()).rpartition("\n\n")[2] == paste_command(plan, facts())
