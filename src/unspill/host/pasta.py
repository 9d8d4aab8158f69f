# SPDX-License-Identifier: Apache-2.0
"""Starts pasta for one run: a child becomes it, another one makes the namespace between and tells when it is ready.

Both are children of the spawner, which never waits for them. pasta stays in the host's network namespace, and finds
the other one as its standard input: its newer versions close every other descriptor.
"""

from __future__ import annotations

import os
import time
from _socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair

from unspill.host import libc
from unspill.host.between import Between
from unspill.host.job import is_dead, memory_file, receive, send
from unspill.host.own_namespace import write_setting
from unspill.model.full_network import BEYOND, BEYOND_LINK, BEYOND_MAC, INSIDE, NETMASK_BITS, RESOLVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn

    from unspill.host.between import Closed
    from unspill.model.full_network import IpVersion
else:
    import _signal as signal

_PATIENCE_S = 5.0
_PAUSE_MS = 1
_DYING_MS = 2000
_SHOWN_BYTES = 400


def pasta_words(versions: tuple[IpVersion, ...], resolvers: tuple[IpVersion, ...]) -> tuple[bytes, ...]:
    """Return how pasta is called: no way to the host's loopback, no ports of one side on the other, no guesses."""
    words = [
        *("pasta", "--foreground", "--quiet", "--no-map-gw", "--no-netns-quit"),
        *("--netns", "/proc/self/fd/0", "--userns", "/proc/self/fd/1", "--ns-ifname", BEYOND_LINK),
        *("--mac-addr", BEYOND_MAC),
        *("-t", "none", "-u", "none", "-T", "none", "-U", "none", "--no-dhcp", "--no-dhcpv6", "--no-ra"),
        *(() if len(versions) > 1 else (f"-{versions[0]}",)),
    ]
    for version in versions:
        words += ["--address", INSIDE[version], "--gateway", BEYOND[version]]
    for version in resolvers:
        words += ["--dns-forward", RESOLVER[version]]
    if 4 in versions:
        words += ["--netmask", str(NETMASK_BITS)]
    return tuple(map(os.fsencode, words))


class Pasta:
    """The pasta of one run. `report` becomes readable when the network is ready, or will never be."""

    def __init__(
        self,
        init: int,
        init_fd: int,
        program: bytes,
        versions: tuple[IpVersion, ...],
        resolvers: tuple[IpVersion, ...],
        closed: Closed,
        *,
        cgroups: tuple[bytes, ...] = (),
    ) -> None:
        """Begin.

        Args:
            init: The pid 1 of the sandbox, which is held back.
            init_fd: The same as a descriptor.
            program: Where pasta is.
            versions: The versions of IP that it is to carry.
            resolvers: Those of them that the host has a resolver for.
            closed: Networks that must not be reached, as packed address and number of bits.
            cgroups: Files by which it joins the groups that bound the run.

        Raises:
            OSError: there is no process or descriptor to be had.
        """
        inside = os.open(f"/proc/{init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if is_dead(init_fd, 0):
            # Then its pid may have been another process's already when its namespace was looked for
            os.close(inside)
            raise ProcessLookupError("the sandbox has ended")
        report, its_report = socketpair(AF_UNIX, SOCK_SEQPACKET)
        given, taken = socketpair(AF_UNIX, SOCK_SEQPACKET)
        words = memory_file(b"")
        try:
            pid = os.fork()
            if not pid:
                # Whoever has the other ends would never learn that they are gone
                its_report.close()
                given.close()
                _become_pasta(taken, words, program, pasta_words(versions, resolvers), cgroups)
            self._pidfd = os.pidfd_open(pid)
            if not os.fork():
                taken.close()
                _make_network(
                    its_report, given, self._pidfd, words, lambda: Between(inside, versions, resolvers), closed
                )
        except OSError:
            # Whoever was to become pasta ends by itself: nobody is left who could tell it where
            report.close()
            raise
        finally:
            for end in (its_report, given, taken):
                end.close()
            os.close(inside)
            os.close(words)
        self._report = report

    def fileno(self) -> int:
        """Return what to wait for."""
        return self._report.fileno()

    def result(self) -> str:
        """Return what went wrong, the empty text if the network is ready."""
        message = receive(self._report)
        return "the network of the sandbox could not be made" if message is None else str(message[0])

    def end(self) -> None:
        """Kill it and wait until it is dead."""
        libc.kill_pidfd(self._pidfd)
        is_dead(self._pidfd, _DYING_MS)
        self._reap()
        os.close(self._pidfd)
        self._report.close()

    def _reap(self) -> None:
        try:
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return  # it died before, and was reaped with the orphans


def _become_pasta(
    taken: socket, words: int, program: bytes, argv: tuple[bytes, ...], cgroups: tuple[bytes, ...]
) -> NoReturn:
    """Wait for the namespaces and become pasta, which has nothing else open."""
    try:
        for path in cgroups:
            write_setting(path, b"0")
        write_setting(b"/proc/self/oom_score_adj", b"1000")
        message = receive(taken)
        if message is not None and len(message[1]) > 1:
            for number, fd in enumerate((*message[1], words)):
                os.dup2(fd, number)
            # Python ignores it, and versions of pasta take that for an error
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            # execve by an ordinary user takes all capabilities away; it gets those that it needs in --userns
            os.execve(program, argv, {})
    except OSError as error:
        os.write(words, f"{os.fsdecode(program)}: {error.strerror}".encode())
    finally:
        os._exit(1)


def _make_network(
    report: socket,
    given: socket,
    pasta: int,
    words: int,
    make: Callable[[], Between],
    closed: Closed,
) -> NoReturn:
    """Make the namespace, hand it to pasta, and tell when the way is open. Called in a child of its own."""
    try:
        between = make()
        between.close_networks(closed)
        between.join_sandbox()
        send(given, "", (between.namespace, between.owner))
        end = time.monotonic() + _PATIENCE_S
        while not between.has_way_out():
            if is_dead(pasta, _PAUSE_MS) or time.monotonic() > end:
                raise OSError(0, f"pasta gave up: {_last_words(words)}")
        between.open_way_out()
        send(report, "")
    except Exception as error:
        text = error.strerror if isinstance(error, OSError) else None
        send(report, f"network of the sandbox: {text or error}")
    finally:
        os._exit(0)


def _last_words(words: int) -> str:
    text = os.pread(words, 1 << 16, 0).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and "to syslog" not in line]
    return " ".join(lines)[-_SHOWN_BYTES:] or "it said nothing"
