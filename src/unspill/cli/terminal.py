# SPDX-License-Identifier: Apache-2.0
"""The person's own terminal while a command has one inside: keys go in, what is printed comes out as it is.

The person's terminal is raw meanwhile: Ctrl-C and Ctrl-Z are keys of the command. It gets its modes back whatever ends
the command or this program, a SIGKILL of it excepted. What the command has printed may have asked the terminal
something; such answers are dropped, because the person's shell would take them for typed.
"""

from __future__ import annotations

import errno
import os
import select
import termios
import time

from unspill.errors import UsageError
from unspill.host.door import set_size
from unspill.host.libc import SIGHUP, TerminalSignals, Terminated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_CHUNK = 1 << 16
_INPUT, _OUTPUT, _LOCAL, _CONTROLS = 0, 1, 3, 6
_NOT_RAW_INPUT = (
    termios.IGNBRK
    | termios.BRKINT
    | termios.PARMRK
    | termios.ISTRIP
    | termios.INLCR
    | termios.IGNCR
    | termios.ICRNL
    | termios.IXON
)
_UNSEEN = termios.ECHO | termios.ECHONL | termios.ICANON
_NOT_RAW_LOCAL = _UNSEEN | termios.ISIG | termios.IEXTEN
_POLLED = select.POLLIN | select.POLLHUP | select.POLLERR
# Ctrl-C and Ctrl-\
_CTRL_C, _LEAVE = 0x03, 0x1C
_INTERRUPTS = (_CTRL_C, _LEAVE)
# Behind the second: to leave a terminal that goes on
_LEAVES = ord("d")
# Long enough that a program sees two sizes, one after the other
_REDRAW_S = 0.05
# So many within this time end a command that ignores them
_MOST_INTERRUPTS, _IMPATIENCE_S = 3, 2.0
_USUAL_LOCAL = termios.ICANON | termios.ISIG
# A question that terminals answer in their turn, after all that the command has asked; how long that may take, and how
# long nothing more comes when it is answered: the command may have asked the same
_ASK, _ANSWER = b"\x1b[5n", b"\x1b[0n"
_ANSWER_MS, _SILENCE_MS, _LONGEST_S = 300, 50, 1.0


def find_terminal() -> tuple[int, int] | None:
    """Return the size of the person's terminal, None unless all three streams and the foreground of it are ours."""
    try:
        found = {(at.st_dev, at.st_ino, at.st_rdev) for at in map(os.fstat, range(3))}
        # Only of the terminal that this session has
        if len(found) != 1 or os.tcgetpgrp(0) != os.getpgrp():
            return None
        size = os.get_terminal_size(0)
    except OSError:
        return None
    return size.lines, size.columns


def get_terminal() -> tuple[int, int]:
    """Return the size of the person's terminal.

    Raises:
        UsageError: this program is not on one, or not in its foreground.
    """
    size = find_terminal()
    if size is None:
        raise UsageError(
            "a terminal needs standard input, output and error on your terminal, in the foreground",
            remedy="Leave out `-t`, or don't redirect any of them.",
        )
    return size


class _SwitchedModes:
    """The private modes that a program has switched on or off: the other screen, the mouse, how keys are sent.

    What it does not know is lost when somebody comes back to a terminal, and drawn again by most programs.
    """

    _START = b"\x1b[?"
    _MOST, _LONGEST = 64, 64

    def __init__(self) -> None:
        self._modes: dict[int, bytes] = {}
        self._kept = b""

    def note(self, text: bytes) -> None:
        """Look at what is written."""
        text = self._kept + text
        *pieces, last = text.split(self._START)
        for piece in (*pieces, last)[1:] if pieces else ():
            numbers = piece[: self._LONGEST].split(b"h", 1)[0].split(b"l", 1)[0]
            switch = piece[len(numbers) : len(numbers) + 1]
            if switch and all(part.isdigit() for part in numbers.split(b";")):
                self._switch([int(part) for part in numbers.split(b";")], switch)
        start = text.rfind(b"\x1b", max(0, len(text) - self._LONGEST))
        is_open = start >= 0 and not text[start + 1 :].lstrip(b"[?0123456789;")
        self._kept = text[start:] if is_open else b""

    def _switch(self, numbers: list[int], switch: bytes) -> None:
        for number in numbers:
            self._modes.pop(number, None)
            if len(self._modes) < self._MOST:
                self._modes[number] = switch

    def sequences(self) -> bytes:
        """Return what switches them all, in the order in which they were."""
        return b"".join(b"\x1b[?%d%b" % pair for pair in self._modes.items())


class PersonTerminal:
    """The terminal that this program was started on, as the other end of a command's terminal.

    `note` is shown what the command prints; `settle` takes back what that left in the terminal, and says whether it
    may have asked the terminal something. `is_impatient`: somebody who presses Ctrl-C again and again wants the command
    to end, unless it reads single keys.
    """

    def __init__(
        self,
        size: tuple[int, int],
        note: Callable[[bytes], None],
        settle: Callable[[], bool],
        *,
        is_impatient: bool = False,
    ) -> None:
        self.size = size
        self._note = note
        self._settle = settle
        self._is_impatient = is_impatient
        self._interrupts: list[float] = []
        self._tty = self._master = -1
        self._modes: list[Any] | None = None
        self._signals: TerminalSignals | None = None
        self._keys = b""
        self._printed = memoryview(b"")
        self._last_key: int | None = None
        # Of a terminal that goes on when the person leaves it
        self.can_leave = self.is_leaving = self._has_leave_key = False
        self._switched = _SwitchedModes()

    @property
    def modes(self) -> bytes:
        """What switches another terminal to the modes that the command has switched this one to."""
        return self._switched.sequences()

    @modes.setter
    def modes(self, sequences: bytes) -> None:
        self._switched.note(sequences)

    def show_last(self, printed: bytes, lost: int, *, is_new: bool) -> None:
        """Show what was printed while nobody was there; unless it is new, have the program draw itself again."""
        note = f"\r\n[{lost} bytes in between are not shown]\r\n".encode() if lost else b""
        shown = self.modes + note + printed
        if printed:
            self._note(shown)
            self._switched.note(printed)
        self._printed = memoryview(shown)
        self._show_all()
        if is_new or self._master < 0:
            return
        try:
            size = os.get_terminal_size(self._tty)
            # A program draws itself when its terminal gets another size, and some only if that differs
            set_size(self._master, max(1, size.lines - 1), size.columns)
            time.sleep(_REDRAW_S)
        except OSError:
            return
        self._resize()

    @property
    def is_begun(self) -> bool:
        """Whether the person's keys go to the command now."""
        return self._modes is not None

    def begin(self, master: int) -> None:
        """Take the master of the command's terminal, and have all keys of the person's from now on."""
        self._master = master
        os.set_blocking(master, False)
        # Opened again: who else has this terminal is not to find it non-blocking
        self._tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._modes = termios.tcgetattr(self._tty)
        self._signals = TerminalSignals(self._resize, self._give_back, self._take)
        self._take()

    def wanted(self) -> dict[int, int]:
        """Return what to wait for: no more keys than the command takes, no more output than the terminal takes."""
        if not self.is_begun:
            return {}
        found = {self._tty: 0 if self._keys else select.POLLIN}
        if self._printed:
            found[self._tty] |= select.POLLOUT
        if self._master >= 0:
            found[self._master] = (0 if self._printed else select.POLLIN) | (select.POLLOUT if self._keys else 0)
        return {fd: events for fd, events in found.items() if events}

    def turn(self, fd: int, events: int) -> bytes:
        """Move what can be moved; return what the command has printed."""
        if fd == self._tty:
            if events & select.POLLOUT:
                self._show()
            if events & _POLLED:
                self._read_keys()
            return b""
        if events & select.POLLOUT:
            self._pass_keys()
        return self._read_printed() if events & _POLLED and not self._printed else b""

    def rest(self) -> bytes:
        """Show and return the last that the command has printed."""
        kept = bytearray()
        while self.is_begun:
            self._show_all()
            if not (chunk := self._read_printed()):
                break
            kept += chunk
        return bytes(kept)

    def end(self) -> None:
        """Give the person their terminal back, as it was."""
        modes, self._modes = self._modes, None
        if self._signals is not None:
            self._signals.restore()
            self._signals = None
        if modes is not None and self._is_ours():
            self._put_back(modes)
        for fd in (self._tty, self._master):
            if fd >= 0:
                os.close(fd)
        self._tty = self._master = -1

    def was_interrupted(self) -> bool:
        """Tell whether the last that the person typed was Ctrl-C or Ctrl-\\."""
        return self._last_key in _INTERRUPTS

    def _put_back(self, modes: list[Any]) -> None:
        quiet = [*modes]
        quiet[_LOCAL] &= ~_UNSEEN
        try:
            # Lines of ours need the usual output, answers to what was asked must not be shown
            termios.tcsetattr(self._tty, termios.TCSADRAIN, quiet)
            if self._settle():
                self._drop_answers()
        except (OSError, termios.error):
            pass  # it is gone
        finally:
            self._set(modes)

    def _drop_answers(self) -> None:
        os.write(self._tty, _ASK)
        found, deadline = b"", time.monotonic() + _LONGEST_S
        poll = select.poll()
        poll.register(self._tty, select.POLLIN)
        while poll.poll(_SILENCE_MS if _ANSWER in found else _ANSWER_MS) and time.monotonic() < deadline:
            found += os.read(self._tty, _CHUNK)
        termios.tcflush(self._tty, termios.TCIFLUSH)

    def _is_ours(self) -> bool:
        """Tell whether this program may set modes now: a shell that has put it aside has set its own."""
        try:
            return os.tcgetpgrp(self._tty) == os.getpgrp()
        except OSError:
            return False

    def _take(self) -> None:
        """Make the terminal raw; after a pause too, in which the window may have got another size."""
        if self._modes is None:
            return
        raw = [*self._modes[:_CONTROLS], [*self._modes[_CONTROLS]]]
        raw[_INPUT] &= ~_NOT_RAW_INPUT
        raw[_OUTPUT] &= ~termios.OPOST
        raw[_LOCAL] &= ~_NOT_RAW_LOCAL
        raw[_CONTROLS][termios.VMIN], raw[_CONTROLS][termios.VTIME] = 1, 0
        self._set(raw)
        self._resize()

    def _give_back(self) -> None:
        if self._modes is not None:
            self._set(self._modes)

    def _set(self, modes: list[Any]) -> None:
        try:
            termios.tcsetattr(self._tty, termios.TCSADRAIN, modes)
        except termios.error:
            return  # it is gone

    def _resize(self) -> None:
        if self._master < 0:
            return
        try:
            size = os.get_terminal_size(self._tty)
            set_size(self._master, size.lines, size.columns)
        except OSError:
            return  # one of both is just ending

    def _read_keys(self) -> None:
        try:
            self._keys = os.read(self._tty, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._keys = b""
        if not self._keys:
            raise Terminated(SIGHUP)
        self._last_key = self._keys[-1]
        if self.can_leave:
            self._keys = self._without_leaving(self._keys)
        if self._is_impatient:
            self._count_interrupts(self._keys)
        self._pass_keys()

    def _without_leaving(self, keys: bytes) -> bytes:
        """Return keys without those that leave the terminal; the first of these waits for the next key."""
        passed = bytearray()
        for key in keys:
            if self._has_leave_key:
                self._has_leave_key = False
                if key == _LEAVES:
                    self.is_leaving = True
                    break
                # Twice is once; before any other key it is itself
                passed += bytes([key] if key == _LEAVE else [_LEAVE, key])
            elif key == _LEAVE:
                self._has_leave_key = True
            else:
                passed.append(key)
        return bytes(passed)

    def _count_interrupts(self, keys: bytes) -> None:
        """Give a command up that does not end by several Ctrl-C."""
        now = time.monotonic()
        recent = [at for at in self._interrupts if now - at < _IMPATIENCE_S]
        self._interrupts = recent + [now] * keys.count(_CTRL_C) if set(keys) == {_CTRL_C} else []
        if len(self._interrupts) >= _MOST_INTERRUPTS and self._reads_lines():
            raise KeyboardInterrupt

    def _reads_lines(self) -> bool:
        """Tell whether the command's terminal is as usual: to editors and shells Ctrl-C is a key like others."""
        if self._master < 0:
            return True
        local: int = termios.tcgetattr(self._master)[_LOCAL]
        return local & _USUAL_LOCAL == _USUAL_LOCAL

    def _pass_keys(self) -> None:
        if self._master < 0:
            self._keys = b""
            return
        try:
            self._keys = self._keys[os.write(self._master, self._keys) :]
        except BlockingIOError:
            return
        except OSError:
            self._keys = b""  # nobody reads them any more

    def _read_printed(self) -> bytes:
        if self._master < 0:
            return b""
        try:
            chunk = os.read(self._master, _CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            chunk = b""
        if not chunk:
            # No program has the other side any more
            os.close(self._master)
            self._master = -1
            return b""
        self._note(chunk)
        if self.can_leave:
            self._switched.note(chunk)
        self._printed = memoryview(chunk)
        self._show()
        return chunk

    def _show(self) -> None:
        try:
            self._printed = self._printed[os.write(self._tty, self._printed) :]
        except BlockingIOError:
            return
        except OSError:
            raise Terminated(SIGHUP) from None

    def _show_all(self) -> None:
        poll = select.poll()
        poll.register(self._tty, select.POLLOUT)
        while self._printed:
            poll.poll()
            self._show()
