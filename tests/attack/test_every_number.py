# SPDX-License-Identifier: Apache-2.0
"""Every system call number by every entry of the kernel, in a real sandbox: who answers, the filter or the kernel.

Nothing that the filter allows is made: a second filter, which the command loads itself, has this process answer it.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.ablation_rules import ABOVE_32_BITS, ENOSYS, FAMILIES, INSIDE, X32_BIT, answer_of
from tests.attack.arena import Arena
from tests.attack.entries_inside import PASSED
from tests.attack.entries_outside import passing
from tests.attack.requests import REQUESTS
from tests.figures import record_figure
from tests.kernel.seccomp_box import MACHINE
from unspill.host.seccomp_rules import RefuseIf, classify, numbers_of, verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.attack.ablation_rules import Call
    from unspill.model.policy import Profile

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

PROFILES: Final[tuple[Profile, ...]] = ("default", "strict")
SWEPT: Final = 1024
# Since 6.13 the kernel shows these to no filter; they are allowed, and whoever makes them by hand is killed or refused
UNFILTERED: Final = ("uretprobe", "uprobe")
FAR: Final = (2**31, 2**31 + 1, 2**32 - 2, X32_BIT | 2**31)
TELLING: Final = (
    *(*range(FAMILIES), 0x5413, 0x40049409, 0x80086601),
    *REQUESTS.values(),
    *(1 << place for place in range(32)),
    0xFFFFFFFF,
)


def told(arena: Arena, profile: Profile, calls: Sequence[Call]) -> list[int]:
    """Return the error of each call inside, PASSED if no filter of ours refused it."""
    text = json.dumps(calls, separators=(",", ":"))
    with passing() as mark:
        command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "told", text, mark]
        result = arena.ground.sandbox(profile=profile).run(command)
    assert result.ok, result
    found: list[int] = json.loads(result.stdout.head + result.stdout.tail)
    assert len(found) == len(calls)
    return found


def every_native_number() -> list[int]:
    shown_to_none = {number for name, number in numbers_of(MACHINE).items() if name in UNFILTERED}
    return [number for number in (*range(SWEPT), *FAR) if number not in shown_to_none]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_number_by_the_native_entry_is_what_the_table_says(arena: Arena, profile: Profile) -> None:
    """Numbers 0 to 1023 and far ones. Control: without the filter not one of them is refused."""
    calls: list[Call] = [("native", number, ()) for number in every_native_number()]
    expected = [answer_of(classify(MACHINE, profile, number), ()) for _, number, _ in calls]
    assert told(arena, profile, calls) == expected
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}
    passed = expected.count(PASSED)
    print(f"{profile}: {passed} numbers pass, {len(expected) - passed} are refused, 0 are not in the table")
    assert passed + len(UNFILTERED) == sum(answer_of(one, ()) == PASSED for one in verdicts(MACHINE, profile))
    record_figure(
        f"system call numbers classified, {profile}",
        f"{len(calls) + len(UNFILTERED)}, 0 unclassified",
        f"0 to {SWEPT - 1} and far ones; {passed} pass with arguments of 0; int 0x80 and x32: all of as many refused",
    )


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these ways into the kernel")
@pytest.mark.parametrize("profile", PROFILES)
def test_every_number_by_the_entries_of_32_bit_programs_does_not_exist(arena: Arena, profile: Profile) -> None:
    """All numbers by `int 0x80` and with the bit of x32. Control: without the filter not one of them is refused."""
    calls: list[Call] = [("int80", number, ()) for number in (*range(SWEPT), *FAR)]
    calls += [("native", X32_BIT | number, ()) for number in range(SWEPT)]
    assert set(told(arena, profile, calls)) == {ENOSYS}
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_argument_that_a_rule_looks_at_is_what_the_table_says(arena: Arena, profile: Profile) -> None:
    """Each call with a rule for an argument, with each telling value of it, with and without bits above 32.
    Control: without the filter not one of them is refused."""
    checked = [(number, one) for number, one in enumerate(verdicts(MACHINE, profile)) if isinstance(one, RefuseIf)]
    calls: list[Call] = []
    for (number, verdict), value, above in product(checked, TELLING, (0, ABOVE_32_BITS)):
        calls.append(("native", number, (*(0,) * verdict.argument, value | above)))
    expected = [answer_of(classify(MACHINE, profile, number), arguments) for _, number, arguments in calls]
    assert told(arena, profile, calls) == expected
    assert len(set(expected)) >= 3
    with arena.without_filter():
        assert set(told(arena, profile, calls)) == {PASSED}


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these calls")
def test_what_the_kernel_shows_to_no_filter_does_nothing_for_a_command(arena: Arena) -> None:
    """Two calls are for a page that the kernel itself maps when somebody traces; make them by hand.
    Control: under an empty filter too the answer is the kernel's own: the process is killed, or told ENXIO."""
    script = """
    for number in %r:
        child = os.fork()
        if not child:
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            os._exit(ctypes.get_errno() if result == -1 else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("STATUS", status)
        if status not in (-signal.SIGILL, errno.ENXIO, errno.ENOSYS): won(number, status)
    """ % [numbers_of(MACHINE)[name] for name in UNFILTERED]
    inside = arena.attack(script)
    assert not inside.won
    with arena.without_filter():
        assert arena.attack(script).lines == inside.lines
