# SPDX-License-Identifier: Apache-2.0
"""A keeper: a small process of the person's own that has one live sandbox, so that commands outlive their terminal.

It is started by the first background run of a sandbox. It ends when it is stopped, or when no background run is left
and nobody talks to it; what was changed is applied or held first. Killed, it takes everything in the sandbox with it.

Whoever starts one has a file locked, and the keeper inherits that descriptor: so there is one keeper of a sandbox at
most. Its first client comes by a socket pair; for all others it listens in the state directory, where nobody else can
reach it. It serves processes of its own user, in its own user namespace: no sandbox has either.

A message is a length and JSON. What a client says is data: fixed words, and no kind of object is made of them.
"""

from __future__ import annotations

import binascii
import fcntl
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time

from unspill import __version__, errors
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.host.dirfd import make_pipe
from unspill.host.job import is_dead
from unspill.layers.locks import SandboxLock, keeper_files, refuse_served, tell_kept
from unspill.model import change, operation, run
from unspill.model.change import Selection
from unspill.model.run import InheritedInput, NeverStarted, RunId, SandboxId, Started, exit_code_of
from unspill.record import Record
from unspill.runner.background import end_runs, forget_ended
from unspill.sandbox.result import RunResult, unsettled_text
from unspill.sandbox.sandbox import Sandbox
from unspill.sandbox.scan import cancelled_line
from unspill.sandbox.terminal import KeptTerminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Protocol, Self

    from unspill.model.operation import Operation
    from unspill.model.policy import After
    from unspill.model.run import Event, Hint
    from unspill.runner.background import BackgroundRun
    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox.ports import WantedPorts
    from unspill.sandbox.terminal import Seat

    class Sitter(AttachedTerminal, Protocol):
        """Who is at a terminal that can be left: `is_leaving` when they want to, with `modes` for the next one.

        `show_last` shows what was printed while nobody was there, and has the program draw itself again.
        """

        can_leave: bool
        is_leaving: bool
        modes: bytes

        def show_last(self, printed: bytes, lost: int, *, is_new: bool) -> None: ...


_LENGTH_BYTES = 4
# A command has at most 2 MiB, its variables too, and JSON may take six letters for each of their bytes
_LONGEST_REQUEST = 32 << 20
_LONGEST_ANSWER = 1 << 31
_MOST_CLIENTS = 64
_MOST_OUTPUT = 1 << 18
_MOST_MODES = 1 << 12
# How long a client may take to read what its command has printed, once all ends
_LAST_WORDS_S = 5.0
# Who closes a connection may be dying
_DYING_MS = 1_000
_LONGEST_WAIT_S = 10.0
_PAUSE_S = 0.02
_LOST = "the keeper of this sandbox was killed, and with it all that ran in it"
_LOST_REMEDY = "The next run of the sandbox holds what they had changed: see `unspill changes`."
_CUT_OFF = "the keeper of this sandbox is alive, and has closed the connection"
_CUT_OFF_REMEDY = "See what runs: unspill ps"
# By name: those that results consist of
_KINDS = {
    kind.__name__: kind
    for kind in (RunResult, *(found for module in (change, operation, run) for found in vars(module).values()))
    if isinstance(kind, type) and issubclass(kind, Record)
}


def to_form(value: Any) -> Any:
    """Return a value as JSON has it: records by the name of their class."""
    if isinstance(value, Record):
        return {"is": type(value).__name__, **{name: to_form(part) for name, part in value.as_dict().items()}}
    if isinstance(value, bytes):
        return {"is": "bytes", "of": binascii.b2a_base64(value, newline=False).decode()}
    return [to_form(part) for part in value] if isinstance(value, tuple | list) else value


def from_form(form: Any) -> Any:
    """Return what `to_form` was given."""
    if isinstance(form, list):
        return tuple(from_form(part) for part in form)
    if not isinstance(form, dict):
        return form
    if form["is"] == "bytes":
        return binascii.a2b_base64(form["of"])
    return _KINDS[form["is"]](**{name: from_form(part) for name, part in form.items() if name != "is"})


def send(sock: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send one message, with descriptors."""
    content = json.dumps(message).encode()
    whole = memoryview(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    sent = socket.send_fds(sock, [whole], descriptors)
    # Nothing is not sent: whoever has read all may be gone by now
    if sent < len(whole):
        sock.sendall(whole[sent:])


def receive(sock: socket.socket, most: int) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message and its descriptors; None at the end, or if it is none."""
    head, descriptors, _flags, _address = socket.recv_fds(sock, _LENGTH_BYTES, 1)
    try:
        head += receive_whole(sock, _LENGTH_BYTES - len(head)) if head else b""
        length = int.from_bytes(head, "big")
        content = receive_whole(sock, length) if 0 < length <= most else b""
        message = json.loads(content) if content else None
    except (ValueError, RecursionError, OSError):
        message = None
    if isinstance(message, dict):
        return message, descriptors
    for fd in descriptors:
        os.close(fd)
    return None


def receive_whole(sock: socket.socket, count: int) -> bytes:
    """Return so many bytes, or nothing if the other side ends before."""
    found = bytearray()
    while len(found) < count:
        piece = sock.recv(min(count - len(found), 1 << 20))
        if not piece:
            return b""
        found += piece
    return bytes(found)


def _error_form(error: UnspillError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}


def _to_error(form: dict[str, str]) -> UnspillError:
    kind = getattr(errors, form["kind"], SandboxUnavailable)
    if not (isinstance(kind, type) and issubclass(kind, UnspillError)) or kind is errors.FileError:
        kind = SandboxUnavailable
    made: UnspillError = kind(form["message"], remedy=form["remedy"])
    return made


def is_own_peer(sock: socket.socket) -> bool:
    """Tell whether the other end is a process of this user that is in no sandbox."""
    # Process, user and group, as numbers of four bytes
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(raw[at : at + 4], sys.byteorder) for at in (0, 4))
    if uid != os.getuid():
        return False
    try:
        return os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino
    except OSError:
        return False


class _ClientGone(BrokenPipeError):
    """Nobody hears the answer."""


class KeeperLink:
    """A client's connection to a keeper. Use it in a `with` block."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        """Take a connection and the process at its other end, which has said something or is our child."""
        self.sock = sock
        try:
            self._process = os.pidfd_open(pid)
        except ProcessLookupError:
            self._process = -1

    def ask(self, what: str, descriptors: tuple[int, ...] = (), **words: Any) -> dict[str, Any]:
        """Ask for something and return the first answer.

        Raises:
            UnspillError: what the keeper raised; or SandboxUnavailable if it is gone.
        """
        try:
            send(self.sock, {"do": what, **words}, descriptors)
        except OSError as error:
            raise self._lost() from error
        return self.answer()

    def _lost(self) -> SandboxUnavailable:
        if self._is_dead():
            return SandboxUnavailable(_LOST, remedy=_LOST_REMEDY)
        return SandboxUnavailable(_CUT_OFF, remedy=_CUT_OFF_REMEDY)

    def _is_dead(self) -> bool:
        return self._process < 0 or is_dead(self._process, _DYING_MS)

    def runs(self) -> dict[str, Any] | None:
        """Return what the keeper lists, None if it has ended meanwhile. Raises as `ask`."""
        try:
            return self.ask("list")
        except SandboxUnavailable:
            if self._is_dead():
                return None
            raise

    def answer(self) -> dict[str, Any]:
        """Return the next answer. Raises as `ask`."""
        return self.answer_with_descriptors()[0]

    def answer_with_descriptors(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next answer and what came with it. Raises as `ask`."""
        found = receive(self.sock, _LONGEST_ANSWER)
        if found is None:
            raise self._lost()
        if "error" in found[0]:
            raise _to_error(found[0]["error"])
        return found

    def results(self, what: str, **words: Any) -> tuple[RunResult, ...]:
        """Ask for something that ends runs, and return how they did."""
        found: tuple[RunResult, ...] = from_form(self.ask(what, **words)["results"])
        return found

    def apply(self, selection: Selection) -> tuple[Operation | None, tuple[Hint, ...]]:
        """Have applied what a selection chooses of what was changed so far; hunks and consents it must not have."""
        paths, globs, overwrite = (
            [*map(os.fsdecode, names)] for names in (selection.paths, selection.globs, selection.overwrite)
        )
        found = self.ask("apply", paths=paths, globs=globs, overwrite=overwrite)
        return from_form(found["operation"]), from_form(found["hints"])

    def give_up(self) -> None:
        """Cancel what was asked for; the answer still comes."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()


def find_keeper(state: bytes, sandbox: SandboxId, *, or_ending: bool = False) -> KeeperLink | None:
    """Return a connection to the keeper of a sandbox, None if there is none.

    One that ends is not for those who want to run something; `or_ending` finds it too.

    Raises:
        SandboxUnavailable: it is one of another version.
    """
    directory, name = os.path.split(keeper_files(state, sandbox)[1])
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _SocketDirectory(directory) as place:
            sock.connect(place.path_of(name))
        hello = receive(sock, _LONGEST_REQUEST) if is_own_peer(sock) else None
    except OSError:
        hello = None
    if hello is None:
        sock.close()
        return None
    if hello[0].get("version") != __version__:
        sock.close()
        pid = hello[0].get("pid")
        raise SandboxUnavailable(
            f"unspill {hello[0].get('version')} keeps this sandbox, and this is {__version__}",
            remedy=f"Stop it, which applies or holds what was changed: kill {pid}",
        )
    if hello[0].get("ending") and not or_ending:
        sock.close()
        return None
    return KeeperLink(sock, int(hello[0]["pid"]))


def find_keepers(state: bytes) -> Iterator[KeeperLink]:
    """Yield a connection to each keeper of a state directory, also to those that end."""
    suffix, directory = b".socket", state + b"/locks"
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        if name.endswith(suffix):
            link = find_keeper(state, SandboxId(os.fsdecode(name.removesuffix(suffix))), or_ending=True)
            if link is not None:
                yield link


def reach_keeper(sandbox: Sandbox, on_wait: Callable[[], None]) -> KeeperLink:
    """Return a connection to the keeper of a sandbox, started if there is none.

    `on_wait` is called once if another one has to end first.

    Raises:
        UnspillError: it can't be started.
    """
    state = sandbox._project.store.state
    sandbox._project.means.check_live()
    has_told = False
    while True:
        link = find_keeper(state, sandbox.id)
        if link is not None:
            return link
        lock = os.open(keeper_files(state, sandbox.id)[0], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)
                return _start(sandbox, lock)
            except BlockingIOError:
                pass
        finally:
            os.close(lock)
        # It begins, or ends
        refuse_served(state, sandbox.id)
        if not has_told:
            on_wait()
            has_told = True
        time.sleep(_PAUSE_S)


def is_busy(sandbox: Sandbox) -> bool:
    """Tell whether somebody has a sandbox's lock right now: a live sandbox, or an operation."""
    lock = SandboxLock(sandbox._project.store.state, sandbox.id)
    if not lock.try_acquire():
        return True
    lock.release()
    return False


def _start(sandbox: Sandbox, lock: int) -> KeeperLink:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # Python may be told by variables to run something else first, and the working directory may be a project
    argv = [sys.executable, "-E", "-P", "-m", __name__]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs.fileno(), lock)]
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in zip((3, 4), high, strict=True)]
    try:
        pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions, setsid=True)
    except OSError as error:
        ours.close()
        raise SandboxUnavailable(f"the keeper of the sandbox can't be started: {error}") from error
    finally:
        theirs.close()
        for fd in high:
            os.close(fd)
    link = KeeperLink(ours, pid)
    try:
        project = os.fsdecode(sandbox.project) if sandbox._project.roots else None
        # Root is asked whether it may run at all, and nobody would hear that question
        is_asked = os.getuid() != 0 and sandbox.policy.permissions.approver != "deny"
        session = sandbox._project.store.session
        link.ask("open", project=project, name=sandbox.name, id=sandbox.id, asks=is_asked, session=session)
    except BaseException:
        link.close()
        raise
    return link


class Detached(Record):
    """Somebody left the terminal of a run that goes on, or another took it."""

    number: int
    is_taken: bool = False


class KeptSandbox:
    """A sandbox that a keeper has alive, for who runs a command in it and waits. Its `run` is like `Sandbox.run`."""

    def __init__(self, sandbox: Sandbox, link: KeeperLink) -> None:
        self._sandbox = sandbox
        self.link = link

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.link.close()

    def options(
        self,
        command: str | list[str],
        working_dir: str | None,
        env: Mapping[str, str],
        timeout: float | None,
        after: After | None,
    ) -> dict[str, Any]:
        """Return what a keeper has to know of a run: also the variables, as a run of this process would have them."""
        own = self._sandbox.plan(command, working_dir=working_dir, env=env).environ
        # Those that lead git to the proxy are counted, and come again
        given = {os.fsdecode(name): os.fsdecode(value) for name, value in own if not name.startswith(b"GIT_CONFIG_")}
        return {"working_dir": working_dir, "env": {**given, **env}, "timeout": timeout, "after": after}

    def start(self, command: str | list[str], **options: Any) -> tuple[dict[str, Any], RunResult | None]:
        """Start a background run; return what `unspill ps` shows of it, and its result if it could not be begun."""
        found = self.link.ask("start", command=command, options=self.options(command, **options))
        return found["run"], from_form(found["result"])

    def open_ports(self, ports: WantedPorts) -> dict[int, int]:
        """Open ports for as long as the keeper has the sandbox; return which of the host's leads to which inside."""
        for port in ports.expose:
            self.link.ask("expose", host=port)
        asked = [(inside, self.link.ask("publish", inside=inside, host=host)) for inside, host in ports.publish]
        return {answer["number"]: inside for inside, answer in asked}

    def run(
        self,
        command: str | list[str],
        *,
        on_event: Callable[[Event], None],
        stdin: int | None = None,
        attach: Sitter | None = None,
        kept: bool = False,
        limits: object = None,
        approver: object = None,
        network: bool = False,
        hosts: Sequence[str] = (),
        readable: Sequence[str] = (),
        reveal: Sequence[str] = (),
        roots: Sequence[str] = (),
        registries: Sequence[str] = (),
        unsandboxed: bool = False,
        ports: WantedPorts | None = None,
        alone: bool = False,
        on_wait: object = None,
        **options: Any,
    ) -> RunResult | Detached:
        """Run a command beside those that are alive. What a live sandbox can't have is refused.

        Whoever is at its terminal may leave it; if it is to be `kept`, it also goes on when they are gone otherwise.

        Raises:
            UnspillError: as `Live.run`.
        """
        del limits, approver, on_wait
        if alone or ports is not None or unsandboxed or any((network, hosts, readable, reveal, roots, registries)):
            raise UsageError(
                f"background runs use sandbox {self._sandbox.name!r}, and what they share stays as it is",
                remedy=f"End them first (unspill stop {self._sandbox.name}), or use another sandbox: --sandbox NAME.",
            )
        words: dict[str, Any] = {"command": command, "options": self.options(command, **options)}
        if attach is not None:
            # A terminal that does not know its size says 0
            rows, columns = attach.size
            words |= {"do": "terminal", "size": [rows or 24, columns or 80], "kept": kept}
            return self._at_terminal(words, attach, on_event)
        try:
            given = () if stdin is None else (stdin,)
            return self._until_result(self.link.ask("run", given, **words), on_event)
        except UnspillError:
            raise
        except BaseException as error:
            # Ctrl-C, or nobody reads what is printed any more
            self.link.give_up()
            self._note_end(error, self._until_result(self.link.answer(), lambda _event: None))
            raise

    def attach(self, number: int, attach: Sitter, on_event: Callable[[Event], None]) -> RunResult | Detached:
        """Sit down at the terminal of a run, until it ends or is left. Raises as `run`."""
        return self._at_terminal({"do": "attach", "run": number}, attach, on_event)

    def _at_terminal(
        self, words: dict[str, Any], attach: Sitter, on_event: Callable[[Event], None]
    ) -> RunResult | Detached:
        try:
            send(self.link.sock, words)
            return self._until_left(attach, on_event)
        except UnspillError:
            raise
        except BaseException as error:
            # A signal, or the terminal is gone
            self.link.give_up()
            answer = self.link.answer()
            while not {"result", "detached", "taken"} & answer.keys():
                answer = self.link.answer()
            if "result" in answer:
                self._note_end(error, from_form(answer["result"]))
            else:
                error.add_note("It goes on: see `unspill ps`.")
            raise

    def _note_end(self, error: BaseException, result: RunResult) -> None:
        is_open = result.unsettled
        error.add_note(f"Cancelled. {unsettled_text(result.shared_with)}" if is_open else cancelled_line(result))

    def _until_result(self, answer: dict[str, Any], on_event: Callable[[Event], None]) -> RunResult:
        while "result" not in answer:
            if "event" in answer:
                on_event(from_form(answer["event"]))
            answer = self.link.answer()
        found: RunResult = from_form(answer["result"])
        return found

    def _until_left(self, attach: Sitter, on_event: Callable[[Event], None]) -> RunResult | Detached:
        answer, descriptors = self.link.answer_with_descriptors()
        if not descriptors:
            return self._until_result(answer, on_event)
        try:
            attach.can_leave, attach.modes = True, from_form(answer["modes"])
            attach.begin(descriptors[0])
            on_event(Started(run=RunId("")))
            attach.show_last(from_form(answer["printed"]), answer["lost"], is_new=answer["first"])
            while not attach.is_leaving:
                poll = select.poll()
                poll.register(self.link.sock, select.POLLIN)
                for fd, events in attach.wanted().items():
                    poll.register(fd, events)
                for fd, events in poll.poll():
                    if fd != self.link.sock.fileno():
                        attach.turn(fd, events)
                        continue
                    found = self.link.answer()
                    if "taken" in found:
                        return Detached(number=answer["run"], is_taken=True)
                    result = self._until_result(found, on_event)
                    attach.rest()
                    return result
            found = self.link.ask("detach", modes=to_form(attach.modes))
            # It may have ended at the same moment
            return self._until_result(found, on_event) if "result" in found else Detached(number=answer["run"])
        finally:
            attach.end()


class _SocketDirectory:
    """A directory by descriptor: the address of a socket has room for 107 bytes."""

    def __init__(self, path: bytes) -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def path_of(self, name: bytes) -> bytes:
        return b"/proc/self/fd/%d/%b" % (self._fd, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        os.close(self._fd)


class Keeper:
    """The live sandbox and all who talk to it, each in a thread."""

    def __init__(self, sandbox: Sandbox, lock: int) -> None:
        self._sandbox = sandbox
        self._lock_fd = lock
        self._live = sandbox.live()
        self._since_ns = time.time_ns()
        # Guards what follows
        self._lock = threading.Lock()
        self._runs: dict[int, BackgroundRun | KeptTerminal] = {}
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._tied: dict[socket.socket, BackgroundRun | KeptTerminal] = {}
        # Clients that wait for a command, and since when one does not read what it is told
        self._waiting: dict[socket.socket, float] = {}
        self._is_begun = self._is_ending = self._is_done = False
        # Set when others can reach it, or never will
        self._is_open = threading.Event()
        # Whoever has it ends all
        self._end_lock = threading.Lock()
        self._news, self._wake_fd = make_pipe()
        os.set_blocking(self._wake_fd, False)

    def serve(self, first: socket.socket) -> None:
        """Serve the first client, then whoever comes, until nothing is left to do."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_soon)
        listener: socket.socket | None = None
        self._take(first)
        poll = select.poll()
        poll.register(self._news, select.POLLIN)
        ending: threading.Thread | None = None
        # While it ends, others can still see what is alive
        while not self._is_done:
            if ending is None and self._is_over():
                ending = threading.Thread(target=self._end, name="unspill-end")
                ending.start()
                self._is_open.set()
            elif ending is None and listener is None and self._is_begun:
                listener = self._listen()
                poll.register(listener, select.POLLIN)
                self._is_open.set()
            for fd, _events in poll.poll():
                if fd == self._news:
                    os.read(fd, 4096)
                elif listener is not None:
                    self._welcome(listener)
        if listener is not None:
            os.unlink(keeper_files(self._sandbox._project.store.state, self._sandbox.id)[1])
            listener.close()
        # Who is being answered hears the rest
        self._shut()
        for thread in tuple(self._clients):
            thread.join(_LAST_WORDS_S)
        self._sandbox.close()

    def _end(self) -> None:
        # From now on whoever wants the sandbox waits for it
        os.ftruncate(self._lock_fd, 0)
        try:
            self.end_all()
        finally:
            self._is_done = True
            self._wake()

    def _stop_soon(self, _number: int, _frame: object) -> None:
        self._is_ending = True
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_fd, b"x")
        except BlockingIOError:
            return  # it will wake up anyway

    def _is_over(self) -> bool:
        with self._lock:
            is_idle = not self._clients and not any(run.is_alive() for run in self._runs.values())
            self._is_ending = self._is_ending or is_idle
            return self._is_ending

    def _listen(self) -> socket.socket:
        lock_path, path = keeper_files(self._sandbox._project.store.state, self._sandbox.id)
        directory, name = os.path.split(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # One that was killed has left its own; nobody else can have one now
        if os.path.lexists(path):
            os.unlink(path)
        with _SocketDirectory(directory) as place:
            listener.bind(place.path_of(name))
        os.chmod(path, 0o600)
        listener.listen(_MOST_CLIENTS)
        # From now on nobody waits for what may never end
        tell_kept(self._lock_fd, self._sandbox.name)
        assert os.path.samestat(os.fstat(self._lock_fd), os.stat(lock_path))
        return listener

    def _welcome(self, listener: socket.socket) -> None:
        client, _address = listener.accept()
        try:
            if not is_own_peer(client) or len(self._clients) >= _MOST_CLIENTS:
                client.close()
                return
            send(client, {"version": __version__, "pid": os.getpid(), "ending": self._is_ending})
            self._take(client)
        except OSError:
            client.close()

    def _take(self, client: socket.socket) -> None:
        thread = threading.Thread(target=self._talk, args=(client,), name="unspill-client", daemon=True)
        with self._lock:
            self._clients[thread] = client
        thread.start()

    def _talk(self, client: socket.socket) -> None:
        try:
            while (found := receive(client, _LONGEST_REQUEST)) is not None:
                words, descriptors = found
                try:
                    answer = self._answer(client, words, descriptors)
                    if answer is not None:
                        _tell(client, answer)
                except UnspillError as error:
                    send(client, {"error": _error_form(error)})
                except _ClientGone:
                    raise
                except Exception as error:
                    failure = SandboxUnavailable(f"the keeper failed: {type(error).__name__}: {error}")
                    send(client, {"error": _error_form(failure)})
                finally:
                    for fd in descriptors:
                        os.close(fd)
        except OSError:
            pass  # the client went away
        finally:
            tied = self._tied.pop(client, None)
            client.close()
            if tied is not None:
                tied.kill()
            with self._lock:
                del self._clients[threading.current_thread()]
            self._wake()

    def _answer(self, client: socket.socket, words: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        """Do what a client asks for and return the answer; None where it has it."""
        match words:
            case {"do": "list"}:
                return self._describe()
            case {"do": "start", "command": command, "options": options}:
                self._begin(client, command, _checked(options))
                return None
            case {"do": "publish", "inside": int(inside), "host": int(host)}:
                return {"number": self._live.publish(inside, host).number}
            case {"do": "expose", "host": int(host)}:
                return {"number": self._live.expose(host).number}
            case {"do": "run", "command": command, "options": options}:
                stdin = InheritedInput(descriptors[0]) if descriptors else None
                return self._run(client, command, _checked(options), stdin)
            case {
                "do": "terminal",
                "command": command,
                "options": options,
                "size": [int(rows), int(columns)],
                "kept": bool(is_kept),
            }:
                kept = self._start_terminal(command, _checked(options), (rows, columns), is_kept=is_kept)
                return self._sit(client, kept)
            case {"do": "attach", "run": int(number)}:
                return self._attach(client, number)
            case {"do": "output", "run": int(number), "offset": int(offset), "timeout": float(timeout)}:
                found = self._find(number)
                end = found.output_end
                text, after, lost = found.output(max(0, offset), _MOST_OUTPUT, timeout=min(timeout, _LONGEST_WAIT_S))
                return {"text": to_form(text), "next": after, "lost": lost, "end": end, "run": _run_form(found)}
            case {"do": "wait", "run": int(number)}:
                return {"results": to_form((self._find(number).wait(),))}
            case {"do": "tie", "run": int(number)}:
                # It ends with this client
                self._tied[client] = self._find(number)
                return {}
            case {"do": "apply", "paths": list(paths), "globs": list(globs), "overwrite": list(overwrite)}:
                return self._apply(Selection(paths=_names(paths), globs=_names(globs), overwrite=_names(overwrite)))
            case {"do": "stop", "run": int(number)}:
                return {"results": to_form(self._stop(self._find(number)))}
            case {"do": "stop"}:
                return {"results": to_form(self.end_all())}
        raise UsageError(f"the keeper of the sandbox does not know this: {words.get('do')!a:.60}")

    def _describe(self) -> dict[str, Any]:
        with self._lock:
            # When all has ended this process is about to end too, and has nothing in the background any more
            is_over = self._is_ending and not any(run.is_alive() for run in self._runs.values())
            runs = [] if is_over else [_run_form(run) for run in self._runs.values() if _is_listed(run)]
        sandbox = self._sandbox
        return {
            "pid": os.getpid(),
            "project": os.fsdecode(sandbox.project) if sandbox._project.roots else None,
            "sandbox": sandbox.name,
            "since_ns": self._since_ns,
            "runs": runs,
        }

    def _find(self, number: int) -> BackgroundRun | KeptTerminal:
        with self._lock:
            found = self._runs.get(number)
        if found is None:
            where = f"in sandbox {self._sandbox.name!r}"
            raise UsageError(f"there is no background run {number} {where}", remedy="See `unspill ps`.")
        return found

    def _begin(self, client: socket.socket, command: Any, options: dict[str, Any]) -> None:
        started = self._live.start(_checked_command(command), **options)
        self._add(started)
        # There is a result only of one that could not be begun
        result = None if started.is_alive() else started.wait()
        never = result is not None and isinstance(result.outcome, NeverStarted)
        try:
            _tell(client, {"run": _run_form(started), "result": to_form(result) if never else None})
        except _ClientGone:
            # It went away while the run waited for its turn, and nobody would know of it
            started.kill()
            raise

    def _add(self, started: BackgroundRun | KeptTerminal) -> None:
        """List a run, and return when others can reach it."""
        with self._lock:
            forget_ended(self._runs)
            self._runs[started.number] = started
        threading.Thread(target=self._follow, args=(started,), name="unspill-follow", daemon=True).start()
        self._is_begun = True
        self._wake()
        self._is_open.wait()

    def _follow(self, run: BackgroundRun | KeptTerminal) -> None:
        run.join()
        if isinstance(run, KeptTerminal):
            run.finish()
        self._wake()

    def _run(
        self, client: socket.socket, command: Any, options: dict[str, Any], stdin: InheritedInput | None
    ) -> dict[str, Any]:
        """Run a command for a client that waits for it; it is cancelled when the client says or goes away."""

        def tell(event: Event) -> None:
            self._waiting[client] = time.monotonic()
            _tell(client, {"event": to_form(event)})
            self._waiting[client] = math.inf

        self._waiting[client] = math.inf
        try:
            result = self._live.run(
                _checked_command(command), **options, stdin=stdin, on_event=tell, cancel_fd=client.fileno()
            )
        finally:
            del self._waiting[client]
        return {"result": to_form(result)}

    def _start_terminal(
        self, command: Any, options: dict[str, Any], size: tuple[int, int], *, is_kept: bool
    ) -> KeptTerminal:
        """Start a command on a terminal that goes on when whoever is at it leaves."""
        started = self._live.kept_terminal(_checked_command(command), size, **options)
        started.is_kept = is_kept
        self._add(started)
        return started

    def _attach(self, client: socket.socket, number: int) -> dict[str, Any] | None:
        """Give the terminal of a run to a client; who has it is told."""
        found = self._find(number)
        if not isinstance(found, KeptTerminal):
            raise UsageError(f"run {number} has no terminal", remedy=f"See what it prints: unspill logs -f {number}")
        if not found.is_alive():
            raise UsageError(f"run {number} has ended", remedy=f"See how: unspill show run{number}")
        return self._sit(client, found)

    def _sit(self, client: socket.socket, kept: KeptTerminal) -> dict[str, Any] | None:
        """Let a client have a terminal until its command ends, it leaves, or another client takes it."""
        seat = kept.sit_down()
        if seat is None:
            return {"result": to_form(kept.wait())}
        try:
            words = {"run": kept.number, "kept": kept.is_kept, "first": seat.is_first, "lost": seat.lost}
            shown = {"modes": to_form(seat.modes), "printed": to_form(seat.printed)}
            _tell(client, {**words, **shown}, (seat.master,))
            poll = select.poll()
            for fd in (client.fileno(), seat.fileno()):
                poll.register(fd, select.POLLIN)
            ready = [fd for fd, _events in poll.poll()]
            if seat.fileno() in ready:
                return {"taken": True} if seat.is_taken else {"result": to_form(kept.wait())}
            return self._stand_up(client, kept, seat)
        except OSError:
            # The client is gone
            if not kept.is_kept:
                kept.close()
            raise
        finally:
            seat.close()

    def _stand_up(self, client: socket.socket, kept: KeptTerminal, seat: Seat) -> dict[str, Any]:
        """Hear from a client why it leaves a terminal: it detaches, or it is gone, and with it what is not kept."""
        found = receive(client, _LONGEST_REQUEST)
        match found and found[0]:
            case {"do": "detach", "modes": {"is": "bytes", "of": str()} as modes}:
                kept.is_kept = True
                seat.stand_up(from_form(modes)[:_MOST_MODES])
                return {"detached": True}
        if kept.is_kept:
            return {"detached": True}
        kept.close()
        return {"result": to_form(kept.wait())}

    def _apply(self, selection: Selection) -> dict[str, Any]:
        """Apply what a person chooses of what the commands have changed so far, while they go on."""
        found = self._live.checkpoint(selection=selection)
        why = found.unsettled or found.problem
        if why:
            raise SandboxUnavailable(f"nothing was applied: {why}", remedy="Try again.")
        return {"operation": to_form(found.operation), "hints": to_form(found.hints)}

    def _stop(self, run: BackgroundRun | KeptTerminal) -> tuple[RunResult, ...]:
        """End a run, and return how it ended."""
        if not end_runs((run,)):
            with self._lock:
                is_alone = not any(one.is_alive() for one in self._runs.values() if one is not run)
            if self._waiting or not is_alone:
                raise SandboxUnavailable(
                    f"run {run.number} was killed, and has not ended yet",
                    remedy=f"See `unspill ps`. To end all of the sandbox: unspill stop {self._sandbox.name}",
                )
            # Whether it does not die or is being applied: this ends the one and waits for the other
            self.end_all(is_urgent=True)
        return (run.wait(),)

    def end_all(self, *, is_urgent: bool = False) -> tuple[RunResult, ...]:
        """End the sandbox with everything in it, and return how the background runs ended.

        They may end by themselves before, unless it is urgent: they were killed, and are still there.
        """
        with self._end_lock:
            with self._lock:
                self._is_ending = True
                runs = tuple(one for one in self._runs.values() if one.is_alive())
            self._wake()
            is_over = threading.Event()
            threading.Thread(target=self._cut_off, args=(is_over,), name="unspill-cut-off", daemon=True).start()
            try:
                if not is_urgent:
                    end_runs(runs)
            finally:
                # It also ends what the commands have kept from ending
                self._live.close()
                is_over.set()
                self._wake()
            return tuple(one.wait() for one in runs)

    def _cut_off(self, is_over: threading.Event) -> None:
        """Let go of clients that do not read what their commands print: they would hold all up."""
        while not is_over.wait(_PAUSE_S):
            for client, since in tuple(self._waiting.items()):
                if time.monotonic() - since > _LAST_WORDS_S:
                    _shut(client, socket.SHUT_RDWR)

    def _shut(self) -> None:
        """Let no client say more; each hears the rest."""
        with self._lock:
            for client in self._clients.values():
                _shut(client, socket.SHUT_RD)


def _tell(client: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send an answer. Raises `_ClientGone` if nobody is there, unlike what fails in the keeper itself."""
    try:
        send(client, message, descriptors)
    except OSError as error:
        raise _ClientGone from error


def _shut(client: socket.socket, how: int) -> None:
    try:
        client.shutdown(how)
    except OSError:
        return  # it is gone


def _is_listed(run: BackgroundRun | KeptTerminal) -> bool:
    """Tell whether a run is in the background: not one that somebody is at who has not left it yet."""
    return run.is_kept if isinstance(run, KeptTerminal) else True


def _run_form(run: BackgroundRun | KeptTerminal) -> dict[str, Any]:
    is_alive, code, problem = run.is_alive(), None, ""
    if not is_alive:
        try:
            code = exit_code_of(run.wait().outcome)
        except Exception as error:
            problem = str(error)
    return {
        "number": run.number,
        "command": [os.fsdecode(word) for word in run.argv],
        "started_ns": run.started_ns,
        "alive": is_alive,
        "exit_code": code,
        "problem": problem,
        "terminal": isinstance(run, KeptTerminal),
        "attached": isinstance(run, KeptTerminal) and run.is_attached,
    }


def _checked_command(command: Any) -> str | list[str]:
    if isinstance(command, str) or (isinstance(command, list) and all(isinstance(word, str) for word in command)):
        return command
    raise UsageError("not a command")


def _names(words: list[Any]) -> tuple[bytes, ...]:
    if not all(isinstance(word, str) for word in words):
        raise UsageError("not names of files")
    return tuple(map(os.fsencode, words))


def _checked(options: Any) -> dict[str, Any]:
    """Return the options of a run that a client gives: no others than these, each of its kind."""
    match options:
        case {
            "working_dir": str() | None,
            "env": dict() as env,
            "timeout": float() | int() | None,
            "after": str() | None,
            **rest,
        } if not rest and all(isinstance(part, str) for pair in env.items() for part in pair):
            return dict(options)
    raise UsageError("not the options of a run")


def main() -> None:
    """Be a keeper: descriptor 3 is the first client, 4 the lock."""
    first, lock = socket.socket(fileno=3), 4
    for fd in (3, lock):
        os.set_inheritable(fd, False)
    os.chdir("/")
    found = receive(first, _LONGEST_REQUEST)
    if found is None:
        return
    words = found[0]
    try:
        project, name, session = words["project"], words["name"], words["session"]
        # That of whoever started it: what runs beside each other in one sandbox can't be told apart
        sandbox = Sandbox(project, name=name, approver="queue" if words["asks"] else None, session=session)
        if sandbox.id != words["id"]:
            raise SandboxUnavailable("the keeper has opened another sandbox", remedy="Check UNSPILL_STATE_DIR.")
        keeper = Keeper(sandbox, lock)
    except UnspillError as error:
        send(first, {"error": _error_form(error)})
        return
    except Exception as error:
        send(first, {"error": _error_form(SandboxUnavailable(f"{type(error).__name__}: {error}"))})
        raise
    send(first, {})
    keeper.serve(first)


if __name__ == "__main__":
    main()
