# SPDX-License-Identifier: Apache-2.0
"""The fence of the profile `strict`, from the mounts of a plan: pure, so every kernel can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.given import HOME, PROJECT, facts, given, home, places, stack
from unspill.errors import HostError, SandboxUnavailable
from unspill.model.plan import (
    PROXY_PORT,
    Fence,
    File,
    FirstInput,
    HostNetwork,
    NoNetwork,
    Plan,
    ProxyNetwork,
)
from unspill.model.policy import Policy
from unspill.plan.build import build_plan
from unspill.plan.explain import explain
from unspill.plan.fence import RIGHTS, handled_rights, rule_rights
from unspill.plan.first import FIRST_FILE, command_words

FIRST = FirstInput(source=b"# the program\n", interpreters=(b"/usr/bin/python3", HOME + b"/.pyenv/bin/python"))
WRITE_RIGHTS = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14


def strict(**values: Any) -> Plan:
    policy = values.pop("policy", Policy(profile="strict"))
    return build_plan(given(**{"policy": policy, "first": FIRST, "facts": facts(landlock_abi=7), **values}))


def fence_of(plan: Plan) -> Fence:
    assert plan.first is not None
    assert plan.first.fence is not None
    return plan.first.fence


def access(plan: Plan) -> dict[bytes, str]:
    return {rule.path: rule.access for rule in fence_of(plan).rules}


def test_only_the_strict_profile_has_a_fence() -> None:
    assert build_plan(given()).first is None
    explaining = build_plan(given(first=FIRST.replace(notices=b"x" * 8)))
    assert explaining.first is not None
    assert explaining.first.fence is None


def test_roots_and_fresh_directories_can_be_written_and_the_system_only_read() -> None:
    plan = strict(places=places(home=home(b".pyenv")))
    found = access(plan)
    assert {path for path, kind in found.items() if kind == "write"} == {
        *(b"/tmp", b"/var/tmp", b"/run", b"/dev/shm", HOME, HOME + b"/playground", PROJECT)
    }
    assert {found[path] for path in (b"/usr", b"/etc", b"/opt", HOME + b"/.pyenv")} == {"read"}
    assert (found[b"/"], found[b"/dev"], found[b"/proc"]) == ("list", "device", "process")


def test_a_mask_is_only_read() -> None:
    plan = strict(
        policy=Policy(profile="strict", hidden=(b"/opt/private", b"/etc/hidden")),
        places=places(files=(b"/etc/hidden",)),
    )
    assert {access(plan)[path] for path in (b"/opt/private", b"/etc/hidden")} == {"read"}


def test_nothing_but_write_can_change_a_file_that_lies_on_a_disk() -> None:
    assert not (RIGHTS["list"] | RIGHTS["read"]) & WRITE_RIGHTS
    assert not RIGHTS["device"] & (WRITE_RIGHTS & ~(1 << 1 | 1 << 14))
    assert RIGHTS["write"] & WRITE_RIGHTS == WRITE_RIGHTS
    # Neither character nor block devices, nowhere
    assert not any(rights & (1 << 6 | 1 << 11) for rights in RIGHTS.values())


@pytest.mark.parametrize(
    ("abi", "expected"),
    [
        (1, ((1 << 13) - 1, 0, 0)),
        (2, ((1 << 14) - 1, 0, 0)),
        (3, ((1 << 15) - 1, 0, 0)),
        (4, ((1 << 15) - 1, 3, 0)),
        (5, ((1 << 16) - 1, 3, 0)),
        (6, ((1 << 16) - 1, 3, 3)),
        (7, ((1 << 16) - 1, 3, 3)),
        (99, ((1 << 16) - 1, 3, 3)),
    ],
)
def test_all_that_a_kernel_can_fence_is_fenced_and_no_more(abi: int, expected: tuple[int, int, int]) -> None:
    fence = fence_of(strict(facts=facts(landlock_abi=abi)))
    assert handled_rights(fence) == expected
    assert all(not rights & ~expected[0] for _path, rights in rule_rights(fence))


@pytest.mark.parametrize(
    ("network", "ports"),
    [
        (NoNetwork(), ()),
        (ProxyNetwork(hosts=("example.org",)), (PROXY_PORT,)),
        (HostNetwork(), None),
    ],
)
def test_tcp_leads_to_the_proxy_only_unless_a_network_was_granted_as_such(network: Any, ports: Any) -> None:
    assert fence_of(strict(network=network)).ports == ports


def test_a_kernel_without_landlock_refuses_the_profile() -> None:
    with pytest.raises(HostError) as refused:
        strict(facts=facts(landlock_abi=0))
    assert "Landlock" in refused.value.message
    assert 'profile = "default"' in refused.value.remedy


def test_no_fence_is_forgotten_in_silence() -> None:
    with pytest.raises(SandboxUnavailable):
        strict(first=None)


def test_an_interpreter_that_the_sandbox_does_not_show_is_not_taken() -> None:
    shown = strict(places=places(home=home(b".pyenv"), system=(b"/etc",)))
    assert shown.first is not None
    assert shown.first.interpreter == HOME + b"/.pyenv/bin/python"
    with pytest.raises(HostError) as refused:
        strict(places=places(system=(b"/etc",)))
    assert "python3" in refused.value.remedy


@pytest.mark.parametrize("root", [b"", b"/lib", b"/lib/python3.12/site-packages"])
def test_an_interpreter_that_an_earlier_command_could_have_changed_is_not_taken(root: bytes) -> None:
    own = HOME + b"/.pyenv/versions/3.12"
    first = FIRST.replace(interpreters=(own + b"/bin/python3.12",))
    shown = {"first": first, "places": places(home=home(b".pyenv"))}
    assert strict(**shown).first is not None
    with pytest.raises(HostError):
        strict(**shown, stacks=(stack(PROJECT), stack(own + root)))


def test_the_program_is_a_file_inside_that_ends_with_what_it_has_to_do() -> None:
    plan = strict()
    [file] = [operation for operation in plan.mounts if operation.dest == FIRST_FILE]
    assert isinstance(file, File)
    assert file.content.startswith(FIRST.source)
    called: dict[str, Any] = {}
    exec(file.content, {"main": lambda **named: called.update(named)})
    assert called["handled"] == handled_rights(fence_of(plan))
    assert dict(called["rules"])[PROJECT] == RIGHTS["write"]
    assert (called["ports"], called["notices"]) == ((), b"")


def test_the_command_stays_the_command_and_its_words_come_last() -> None:
    plan = strict(argv=(b"--", b"-x", b"\xff"))
    assert plan.argv == (b"--", b"-x", b"\xff")
    interpreter, *options, file, channel, cwd, first, second, third = command_words(plan, 9)
    assert (interpreter, file, channel, cwd) == (b"/usr/bin/python3", FIRST_FILE, b"9", PROJECT)
    assert b"-I" in options
    assert (first, second, third) == plan.argv
    assert command_words(build_plan(given())) == given().argv


def test_the_fence_is_explained_and_part_of_what_can_be_pasted() -> None:
    text = explain(strict(), facts())
    assert "fence: Landlock, ABI 7; no TCP, not even on loopback" in text
    assert "before the command: a program of unspill's, run by /usr/bin/python3" in text
    assert f"-I -S -E /run/unspill-first -1 {PROJECT.decode()} /bin/sh -c true" in text
    assert "fence:" not in explain(build_plan(given()), facts())
