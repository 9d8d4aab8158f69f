# SPDX-License-Identifier: Apache-2.0
"""What is compared: each tool with the command line by which a coding agent would work in one project.

A command line is written once, with `$PWD`, `$HOME` and `CMD` in it: it is run as docs/comparison.md shows it. Where a
tool has a default for this, that is taken. A tool that is missing or fails is left out by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import measuring

from unspill import Sandbox
from unspill.sandbox.live import Live

IMAGE: Final = "localhost/unspill-peers"
IMAGE_PACKAGES: Final = "python3,python3-pip,git"
# The example of its own README: writes into the project, no network, all may be read
SRT_SETTINGS: Final = {
    "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
    "network": {"allowedDomains": [], "deniedDomains": []},
}
_LONGEST_S: Final = 120


class CannotRun(Exception):
    """A tool does not do its work here."""


@dataclass(frozen=True)
class Peer:
    """One tool. `undo` takes back what its last command did; `throw_away` runs one so that nothing of it arrives."""

    name: str
    words: str
    version: str = ""
    undo: str = ""
    throw_away: str = ""
    # Started once for a project and ended after it, for what keeps a sandbox
    opening: str = ""
    closing: str = ""
    # It has its own store in the person's own home, or asks the password database where home is
    has_own_home: bool = False
    note: str = ""

    @property
    def program(self) -> str:
        return self.words.split()[0]


NONE: Final = Peer("no sandbox", "sh -c CMD", undo="git reset -q --hard START")
UNSPILL: Final = Peer(
    "unspill run",
    "unspill run -- sh -c CMD",
    version="unspill --version",
    undo="unspill undo",
    throw_away="unspill run --hold -- sh -c CMD",
)
LIVE: Final = Peer(
    "unspill, live",
    "live.run(CMD)",
    version="unspill --version",
    undo="sandbox.undo()",
    throw_away='live.run(CMD, after="discard")',
    note='In Python: `with Sandbox(".") as sandbox, sandbox.live() as live:`. On the command line, runs share the '
    "sandbox of one that was started with `unspill run -d`.",
)
BWRAP: Final = Peer(
    "bubblewrap",
    "bwrap --ro-bind / / --tmpfs $HOME --bind $PWD $PWD --dev /dev --proc /proc --unshare-all --die-with-parent "
    "--chdir $PWD sh -c CMD",
    version="bwrap --version",
    note="It has no default. This is a short command line that leaves out the home directory and the network.",
)
SRT: Final = Peer(
    "srt",
    "srt -c CMD",
    version="srt --version",
    note=f"`~/.srt-settings.json` is the example of its README: `{json.dumps(SRT_SETTINGS)}`. Claude Code calls it as "
    "a library and doesn't start Node for each command.",
)
CODEX: Final = Peer(
    "codex",
    "codex sandbox -c sandbox_mode=workspace-write -- sh -c CMD",
    version="codex --version",
    note="The mode that Codex takes for a project under version control. Within a session the `codex` program is not "
    "started for each command.",
)
TRY: Final = Peer(
    "try",
    "try -y CMD",
    version="try -v",
    throw_away="try -n CMD",
    note="`-y` answers its question, so that changes reach the project as they do with the others.",
)
FIREJAIL: Final = Peer(
    "firejail",
    "firejail --quiet sh -c CMD",
    version="firejail --version",
    has_own_home=True,
    note="With its profile for programs that it doesn't know, `default.profile`.",
)
_PODMAN_OPTIONS: Final = "--network none --userns keep-id -v $PWD:$PWD -w $PWD"
PODMAN: Final = Peer(
    "podman run",
    f"podman run --rm {_PODMAN_OPTIONS} {IMAGE} sh -c CMD",
    version="podman --version",
    throw_away=f"podman run --rm {_PODMAN_OPTIONS.replace('$PWD:$PWD', '$PWD:$PWD:O')} {IMAGE} sh -c CMD",
    has_own_home=True,
    note=f"`{IMAGE}` is Debian with {IMAGE_PACKAGES.replace(',', ', ')}; `--prepare` makes it.",
)
PODMAN_EXEC: Final = Peer(
    "podman exec",
    "podman exec $NAME sh -c CMD",
    version="podman --version",
    opening=f"podman run --rm -d --name $NAME {_PODMAN_OPTIONS} {IMAGE} sleep 3600",
    closing="podman rm -f -t 0 $NAME",
    has_own_home=True,
    note="A container that is kept, as development containers are.",
)
PEERS: Final = (NONE, BWRAP, UNSPILL, LIVE, SRT, CODEX, TRY, FIREJAIL, PODMAN, PODMAN_EXEC)


@dataclass
class Place:
    """One project for one tool: how the tool runs a command there, and the variables of whoever starts it."""

    peer: Peer
    project: Path
    home: Path
    environ: Mapping[str, str]
    sandbox: Sandbox | None = field(default=None, repr=False)
    live: Live | None = field(default=None, repr=False)

    def open(self) -> None:
        """Start what is kept between commands."""
        if self.peer is LIVE:
            self.sandbox = Sandbox(self.project)
            self.live = self.sandbox.live()
        elif self.peer.opening:
            self.call(self.peer.closing, may_fail=True)
            self.call(self.peer.opening)

    def close(self) -> None:
        """End what is kept."""
        if self.live is not None and self.sandbox is not None:
            self.live.close()
            self.sandbox.close()
            self.live = self.sandbox = None
        if self.peer.closing:
            self.call(self.peer.closing, may_fail=True)

    def run(self, script: str) -> str:
        """Run a shell script as the tool's command and return what it printed.

        Raises:
            CannotRun: it failed.
        """
        if self.live is None:
            return self.call(self.peer.words, script)
        result = self.live.run(script)
        if result.exit_code != 0:
            raise CannotRun(last_line(result.text()))
        return result.stdout.text

    def undo(self, start: str) -> bool:
        """Take back what the last command did; tell whether the tool has a way to."""
        if self.sandbox is not None:
            self.sandbox.undo()
        elif self.peer.undo:
            self.call(self.peer.undo.replace("START", start))
        return bool(self.peer.undo)

    def throw_away(self, script: str) -> bool:
        """Run a script so that nothing of it reaches the project; tell whether the tool has a way to."""
        if self.live is not None:
            self.live.run(script, after="discard")
        elif self.peer.throw_away:
            self.call(self.peer.throw_away, script)
        return bool(self.peer.throw_away)

    def call(self, words: str, script: str = "", *, may_fail: bool = False) -> str:
        """Run a command line of the table.

        Raises:
            CannotRun: it failed, or took far too long.
        """
        try:
            done = subprocess.run(
                self.argv(words, script),
                cwd=self.project,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRun(str(error)) from error
        if done.returncode != 0 and not may_fail:
            raise CannotRun(last_line(done.stderr) or f"exit code {done.returncode}")
        return done.stdout

    def argv(self, words: str, script: str) -> list[str]:
        """Return a command line with this project, home and script in it."""
        name = "-".join(self.project.parts[-3:]).lower()
        values = {"$PWD": os.fspath(self.project), "$HOME": os.fspath(self.home), "$NAME": name}
        found = [script if word == "CMD" else _filled(word, values) for word in words.split()]
        return [measuring.unspill_program(), *found[1:]] if found[0] == "unspill" else found


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def last_line(text: str) -> str:
    """Return the last line of what a program complained, for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else ""


def missing(peer: Peer, environ: Mapping[str, str]) -> str | None:
    """Return why a tool can't be tried, None if it can."""
    if peer in (UNSPILL, LIVE):
        return None
    if shutil.which(peer.program, path=environ.get("PATH")) is None:
        return f"`{peer.program}` is not on the PATH"
    if peer.program == "podman":
        asked = subprocess.run(["podman", "image", "exists", IMAGE], env=environ, capture_output=True, check=False)
        if asked.returncode != 0:
            return f"there is no image `{IMAGE}`; `--prepare` makes it"
    return None


def version_of(peer: Peer, environ: Mapping[str, str]) -> str:
    """Return the version that a tool says it has."""
    if not peer.version:
        return ""
    words: Sequence[str] = peer.version.split()
    if words[0] == "unspill":
        words = [measuring.unspill_program(), *words[1:]]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[\w.+~-]*", done.stdout + done.stderr)
    return found[0] if found else "unknown"


def prepare_image(environ: Mapping[str, str]) -> None:
    """Make the image of podman's containers: this machine's Debian, by its own apt configuration.

    Raises:
        CannotRun: mmdebstrap or podman failed.
    """
    release = Path("/etc/os-release").read_text()
    suite = re.search(r"^VERSION_CODENAME=(\w+)", release, re.MULTILINE)
    if suite is None:
        raise CannotRun("only Debian and what is made from it say which suite they are")
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={IMAGE_PACKAGES}", suite[1], "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as made:
        done = subprocess.run(["podman", "import", "-q", "-", IMAGE], stdin=made.stdout, env=environ, check=False)
    if done.returncode != 0 or made.returncode != 0:
        raise CannotRun("the image was not made")


def close_all(places: Iterable[Place]) -> None:
    """End what is kept for all of them."""
    for place in places:
        with suppress(CannotRun):
            place.close()
