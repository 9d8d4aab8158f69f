# SPDX-License-Identifier: Apache-2.0
"""`unspill` by way of its standby: a client that starts in a few milliseconds.

It hands its words, directory, variables and standard streams to the standby and ends as that says. Where there is no
standby, or it does not want to, this process becomes the whole program, which does the same. So nothing here decides
anything. It imports no more than it needs: all else would cost more than what the standby does.
"""

import posix
import sys
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]
from _socket import AF_UNIX, SCM_RIGHTS, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket

# The standby answers at once, or is not well
_PATIENCE_S = 2.0
_LENGTH_BYTES = 4
_CREDENTIALS_BYTES = 12
_OUR_FAILURE, _STOPPED = 125, 2
_NO_STANDBY = b"UNSPILL_NO_STANDBY"
ACCEPTED, GO = b"a", b"g"
_LOST = b"unspill: the standby that ran this was killed. What it had changed is held: see `unspill changes`.\n"


def main() -> None:
    """Have the standby do what the words say, or do it as the whole program."""
    words = [word.encode(sys.getfilesystemencoding(), "surrogateescape") for word in sys.argv[1:]]
    link = None
    is_taken = False
    # What also leaves a standby behind for the next
    module = b"unspill" if _NO_STANDBY in posix.environ else b"unspill.standby.server"
    try:
        if module != b"unspill":
            link = _reach()
            module = b"unspill"
            is_taken = _hand_over(link, words)
    except OSError:
        is_taken = False
    if link is None or not is_taken:
        # Python may be told by variables to run something else first, and the working directory may be a project
        python = sys.executable.encode(sys.getfilesystemencoding(), "surrogateescape")
        posix.execv(python, [python, b"-E", b"-P", b"-m", module, *words])
    posix._exit(_follow(link, _STOPPED if words[:1] == [b"hook"] else _OUR_FAILURE))


def _reach() -> socket:
    """Return a connection to the standby of this user. An OSError if there is none."""
    environ = posix.environ
    state = environ.get(b"UNSPILL_STATE_DIR")
    if not state:
        above = environ.get(b"XDG_STATE_HOME") or environ.get(b"HOME", b"") + b"/.local/state"
        state = above + b"/unspill"
    # By descriptor: the address of a socket has room for 107 bytes
    place = posix.open(state + b"/locks", posix.O_PATH | posix.O_CLOEXEC)
    link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    link.settimeout(_PATIENCE_S)
    link.connect(b"/proc/self/fd/%d/standby" % place)
    posix.close(place)
    owner = link.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS_BYTES)[4:8]
    if int.from_bytes(owner, sys.byteorder) != posix.getuid():
        raise OSError
    return link


def _hand_over(link: socket, words: list[bytes]) -> bool:
    """Tell the standby all that a program knows when it starts; return whether it will do it.

    It begins only once it has the streams, so it does nothing for a client that has given it up.
    """
    if any(map(posix.isatty, range(3))):
        return False
    umask = posix.umask(0o077)
    posix.umask(umask)
    variables = [name + b"=" + value for name, value in posix.environ.items()]
    content = b"\0".join([b"%d" % umask, posix.getcwdb(), b"%d" % len(words), *words, *variables])
    whole = len(content).to_bytes(_LENGTH_BYTES, "big") + content
    link.sendall(whole)
    if link.recv(1) != ACCEPTED:
        return False
    link.settimeout(None)
    # Not before: what waits in the socket of a standby that hangs would keep the streams open
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    link.sendmsg([GO], [(SOL_SOCKET, SCM_RIGHTS, streams)])
    return True


def _follow(link: socket, failure: int) -> int:
    """Pass on signals that ask this program to end, and return the exit code."""
    heard: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        heard.append(number)
        try:
            link.send(number.to_bytes(1, "big"))
        except OSError:
            return  # it has ended: the code is still to be read

    for number in (SIGINT, SIGTERM, SIGHUP):
        if getsignal(number) is not SIG_IGN:
            signal(number, pass_on)
    try:
        code = link.recv(1)
    except OSError:
        code = b""
    if code:
        return code[0]
    if heard:
        return 128 + heard[0]
    try:
        posix.write(2, _LOST)
    except OSError:
        return failure  # nobody can be told
    return failure
