# SPDX-License-Identifier: Apache-2.0
"""The system call filter of a run, ready for bwrap's `--seccomp`.

The finished programs are checked in: to import the rules and assemble them would cost each start about two
milliseconds. Tests hold them against the rules. Nothing is loaded into the kernel here.
"""

from __future__ import annotations

from unspill.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Profile

_built: dict[tuple[str, Profile], bytes] = {}


def build_filter(machine: str, profile: Profile) -> bytes:
    """Return the program for a machine, as uname names it, and a profile; made once per process.

    Raises:
        HostError: unspill does not know this machine's system calls.
    """
    key = machine, profile
    if key not in _built:
        from unspill.host.seccomp_programs import PROGRAMS

        if machine not in PROGRAMS:
            raise HostError(
                f"unspill does not know the system calls of {machine}, and runs no command without a filter of them.",
                remedy=f"Use a machine with a 64-bit system of one of these kinds: {', '.join(PROGRAMS)}.",
            )
        _built[key] = bytes.fromhex(PROGRAMS[machine][profile])
    return _built[key]
