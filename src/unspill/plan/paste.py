# SPDX-License-Identifier: Apache-2.0
"""A plan as one command that a person can paste into a shell to be in the same sandbox.

Its writes go to a scratch directory of its own that it removes, never to a layer. Limits are not part of it.
"""

from __future__ import annotations

from unspill.model.plan import File, Overlay
from unspill.plan.argv import (
    bind_options,
    bwrap_options,
    file_options,
    filter_options,
    is_overlapping,
    mounted_by_bwrap,
    to_options,
)
from unspill.plan.shell import Words, printf_format
from unspill.plan.stage import command_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.facts import Facts
    from unspill.model.plan import Plan

_FIRST_FD = 3
# No option has a NUL: what begins with one is a name in the scratch directory.
_SCRATCH = b"\0"
# Bytes in a line, a multiple of 3: only the last may have padding
_BASE64_LINE = 72


def paste_command(plan: Plan, facts: Facts) -> str:
    """Return the command: printable ASCII and newlines, for any POSIX shell.

    Raises:
        UnspillError: as `bwrap_options`.
    """
    bwrap_options(plan, facts, _FIRST_FD)
    return _Paste(plan, facts).text()


class _Paste:
    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.plan = plan
        self.words = Words()
        self.steps: list[str] = []
        self.descriptors: list[str] = []
        self._names = 0
        options = to_options(plan, facts, overlay=self._overlay, file=self._file)
        if plan.filter:
            options += filter_options(facts, self._filter())
        self.command = [plan.bwrap, *options, b"--", *command_words(plan)]

    def text(self) -> str:
        run = self._run_line()
        enter = "unshare --map-current-user --mount --keep-caps " if self.plan.engine == "mount" else ""
        lines = [
            "sh <<'UNSPILL'",
            'scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/unspill.XXXXXX") || exit 125',
            # mount(8) would else pass options of more than 256 bytes by a call that does not take them
            "export scratch LC_ALL=C LIBMOUNT_FORCE_MOUNT2=always",
            f"{enter}sh -e <<'INSIDE'",
            'cd "$scratch"',
            *self.words.assignments,
            *self.steps,
            run,
            "INSIDE",
            "code=$?",
            'chmod -R u+rwX "$scratch"; rm -rf "$scratch"',
            "exit $code",
            "UNSPILL",
        ]
        return "\n".join(lines) + "\n"

    def _run_line(self) -> str:
        command = " ".join(self._word(value) for value in self.command)
        # unshare leaves its capabilities in the ambient set; bwrap refuses to start with them
        drop = "setpriv --inh-caps=-all --ambient-caps=-all " if self.plan.engine == "mount" else ""
        return " ".join([f"exec {drop}{command}", *self.descriptors, "</dev/null"])

    def _word(self, value: bytes) -> str:
        if value.startswith(_SCRATCH):
            return '"$scratch"/' + value[1:].decode("ascii")
        return self.words.word(value)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _file(self, operation: File) -> tuple[bytes, ...]:
        name = self._name("file")
        self.steps.append(f"printf '{printf_format(operation.content)}' >{name}")
        if operation.over:
            # Beyond 9 not every shell has descriptors, so a file where the real thing has a pipe
            self.steps.append(f"chmod {operation.mode:o} {name}")
            return bind_options(_SCRATCH + name.encode(), operation.dest, writable=False)
        return file_options(operation, self._descriptor(name))

    def _filter(self) -> int:
        from binascii import b2a_base64

        name = self._name("filter")
        pieces = [self.plan.filter[at : at + _BASE64_LINE] for at in range(0, len(self.plan.filter), _BASE64_LINE)]
        lines = [b2a_base64(piece, newline=False).decode("ascii") for piece in pieces]
        self.steps += [f"base64 -d >{name} <<'FILTER'", *lines, "FILTER"]
        return self._descriptor(name)

    def _descriptor(self, name: str) -> int:
        fd = _FIRST_FD + len(self.descriptors)
        self.descriptors.append(f"{fd}<{name}")
        return fd

    def _overlay(self, operation: Overlay) -> tuple[bytes, ...]:
        if self.plan.engine == "native":
            return self._by_bwrap(operation)
        return bind_options(self._mounted(operation), operation.dest, writable=operation.upper is not None)

    def _mounted(self, operation: Overlay) -> bytes:
        merged = self._name("merged")
        lowers = []
        own = operation.lowers
        if is_overlapping(operation):
            own = operation.lowers[1:]
            lowers.append(self._name("empty"))
            self.steps.append(f"mkdir {lowers[0]}; mount -t tmpfs -o nosuid,nodev tmpfs {lowers[0]}")
            self.steps += [f"mkdir {lowers[0]}/{self.words.word(name)}" for name in operation.points]
        for lower in own:
            # A link has a name without the characters that overlay options are made of
            lowers.append(self._name("l"))
            self.steps.append(f"ln -s {self.words.word(lower)} {lowers[-1]}")
        options = f"lowerdir={':'.join(lowers)},metacopy=off,userxattr"
        directories = [merged]
        if operation.upper is not None:
            directories += [self._name("upper"), self._name("work")]
            options += f",upperdir={directories[1]},workdir={directories[2]},index=off,volatile"
        self.steps.append(f"mkdir {' '.join(directories)}")
        self.steps.append(f"mount -t overlay -o {options},nosuid,nodev overlay {merged}")
        return _SCRATCH + merged.encode()

    def _by_bwrap(self, operation: Overlay) -> tuple[bytes, ...]:
        if operation.upper is None:
            return mounted_by_bwrap(operation)
        sources = [part for lower in reversed(operation.lowers) for part in (b"--overlay-src", lower)]
        upper, work = self._name("upper"), self._name("work")
        self.steps.append(f"mkdir {upper} {work}")
        return (*sources, b"--overlay", _SCRATCH + upper.encode(), _SCRATCH + work.encode(), operation.dest)
