# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: where it listens and its token lies (E2), what the SDK's client does and commands see of it."""

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.agents.http_world import PATIENCE_S, Served, by_http, exchange, serving, until
from tests.agents.mcp_world import DECLINE, MODES, Person, in_world, say, text_of, until_gone, until_started
from tests.support import Ground, lasting, processes_with, run_cli
from unspill.adapters.mcp import http
from unspill.adapters.mcp.http import (
    Guard,
    Place,
    Token,
    allowed_hosts,
    check_origin,
    check_unseen,
    identity_of,
    listen,
    load_token,
    parse_address,
    remove_socket,
)
from unspill.errors import UsageError

pytestmark = pytest.mark.agents

# A client that is another user to the kernel: one of the ids that are subordinate to this user, without root
STRANGER = ["unshare", "--user", "--map-auto", "--setuid", "7", "--setgid", "7", sys.executable, "-I", "-c"]
CLIENT = """
import socket, sys
made = socket.socket(socket.AF_UNIX)
made.settimeout(10)
try:
    made.connect(sys.argv[1])
    made.sendall(sys.stdin.buffer.read())
    answer = made.recv(65536)
except OSError as error:
    print(type(error).__name__)
else:
    print(answer.split(b"\\r\\n")[0].decode() or "nothing")
"""


def test_a_unix_socket_is_its_owners_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    place = tmp_path / "run" / "deep" / "mcp.sock"
    with serving(tmp_path / "served", f"unix:{place}") as served:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert served.ask().status == 200
        assert served.ask(change={"Authorization": None}).status == 401
        assert served.ask(change={"Host": "evil.example.org"}).status == 421
    assert not place.exists()
    assert served.process.returncode == 0


def ask_as_stranger(served: Served) -> str:
    """Return what another user gets, who even knows the token."""
    done = subprocess.run(
        [*STRANGER, CLIENT, served.socket_path], input=served.request(), capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0, done
    return done.stdout.decode().strip()


def test_e2_another_user_does_not_reach_a_unix_socket_and_is_sent_away_where_it_is_left_open(tmp_path: Path) -> None:
    """Connect as another user, with the token, to the unix socket of the HTTP server; also where its modes were opened.

    Control: its owner gets through, and below the other user to a socket that looks at nobody.
    """
    place = tmp_path / "run" / "mcp.sock"
    with serving(tmp_path / "served", f"unix:{place}") as served, opened_up(tmp_path):
        assert ask_as_stranger(served) == "PermissionError"
        place.parent.chmod(0o755)
        assert ask_as_stranger(served) == "PermissionError"
        place.chmod(0o666)
        assert ask_as_stranger(served) in ("nothing", "ConnectionResetError", "BrokenPipeError")
        assert served.marks == ""
        assert served.ask().status == 200


def test_control_another_user_reaches_a_socket_that_is_left_open_and_looks_at_nobody(tmp_path: Path) -> None:
    place = tmp_path / "mcp.sock"
    with socket.socket(socket.AF_UNIX) as listener, opened_up(tmp_path):
        listener.bind(os.fspath(place))
        listener.listen()
        place.chmod(0o666)
        words = [*STRANGER, CLIENT, os.fspath(place)]
        stranger = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        with stranger, listener.accept()[0] as accepted:
            accepted.sendall(b"HTTP/1.1 200 OK\r\n")
            assert stranger.communicate(timeout=30)[0].strip() == b"HTTP/1.1 200 OK"


@contextlib.contextmanager
def opened_up(path: Path) -> Any:
    """Let other users through to a directory of pytest's."""
    changed = [(one, one.stat().st_mode) for one in (path, *path.parents) if one.stat().st_uid == os.getuid()]
    for one, mode in changed:
        one.chmod(stat.S_IMODE(mode) | 0o011)
    try:
        yield
    finally:
        for one, mode in changed:
            one.chmod(stat.S_IMODE(mode))


REFUSED_ADDRESSES = (
    *("0.0.0.0:8000", "[::]:8000", ":8000", "8000", "", "*:8000", "localhost:8000", "192.0.2.1:8000", "::1:8000"),
    *("127.0.0.2:8000", "127.1:8000", "[::ffff:127.0.0.1]:8000", "example.org:8000", "tcp:127.0.0.1:8000"),
    *(
        "unix:",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:-1",
        "127.0.0.1:65536",
        "127.0.0.1:1٣",
        "127.0.0.1 :80",
    ),
)


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
def test_e2_an_address_that_others_can_reach_is_refused_with_a_remedy(address: str) -> None:
    """Have the HTTP server listen for other machines.

    Control: below, loopback addresses and unix sockets are taken.
    """
    with pytest.raises(UsageError) as caught:
        parse_address(address)
    assert "unix:PATH" in caught.value.remedy


def test_control_loopback_and_unix_sockets_are_addresses() -> None:
    assert parse_address("127.0.0.1:0") == Place(host="127.0.0.1", port=0)
    assert parse_address("[::1]:65535") == Place(host="[::1]", port=65535)
    assert parse_address("unix:/run/x") == Place(path=b"/run/x")


def test_a_port_is_reached_by_its_own_names_only() -> None:
    four, six = Place(host="127.0.0.1", port=0), Place(host="[::1]", port=0)
    assert allowed_hosts(four, 8000) == ["127.0.0.1:8000", "localhost:8000"]
    assert allowed_hosts(six, 8000) == ["[::1]:8000", "localhost:8000"]
    assert allowed_hosts(four, 80) == ["127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"]
    assert allowed_hosts(Place(path=b"/x"), 0) == ["localhost"]


def test_the_address_of_version_6_is_served_under_its_name_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "served", "[::1]:0") as served:
        assert served.host == f"[::1]:{served.port}"
        assert served.ask().status == 200
        assert served.ask(change={"Host": f"localhost:{served.port}"}).status == 200
        for host in (f"127.0.0.1:{served.port}", f"[0:0:0:0:0:0:0:1]:{served.port}", f"[::1%lo]:{served.port}"):
            assert served.ask(change={"Host": host}).status == 421
        assert served.marks == "xx"


def test_a_socket_of_a_server_that_runs_is_not_taken_away_and_that_of_a_dead_one_is(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    place = Place(path=os.fsencode(directory / "mcp.sock"))
    first = listen(place)
    with pytest.raises(UsageError, match="in use"):
        listen(place)
    first.close()
    listen(place).close()
    (directory / "file").write_text("x")
    with pytest.raises(UsageError, match="in use"):
        listen(Place(path=os.fsencode(directory / "file")))
    assert (directory / "file").read_text() == "x"


def test_a_unix_socket_is_not_made_where_others_can_enter(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    for mode in (0o755, 0o770, 0o701):
        directory.chmod(mode)
        with pytest.raises(UsageError, match="other users"):
            listen(Place(path=os.fsencode(directory / "mcp.sock")))
    with pytest.raises(UsageError, match="other users"):
        listen(Place(path=b"/tmp/unspill-mcp.sock"))
    assert os.listdir(directory) == []
    with pytest.raises(UsageError, match="too long"):
        listen(Place(path=os.fsencode(tmp_path / ("x" * 120))))


def test_a_socket_that_another_server_has_in_its_place_by_now_is_left_there(tmp_path: Path) -> None:
    """Control: its own is removed."""
    directory = tmp_path / "run"
    path = os.fsencode(directory / "mcp.sock")
    with listen(Place(path=path)):
        first = identity_of(path)
        os.rename(path, path + b".old")
        with listen(Place(path=path)):
            second = identity_of(path)
            remove_socket(path, first)
            assert identity_of(path) == second
            remove_socket(path, second)
            assert identity_of(path) is None
            remove_socket(path, second)
    assert os.listdir(directory) == ["mcp.sock.old"]


def test_two_servers_on_one_port_are_refused(tmp_path: Path) -> None:
    with listen(Place(host="127.0.0.1", port=0)) as first, pytest.raises(UsageError, match="in use"):
        listen(Place(host="127.0.0.1", port=first.getsockname()[1]))


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "new" / "token"
    old = os.umask(0)
    try:
        load_token(os.fsencode(place))
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert os.listdir(place.parent) == ["token"]
    made = place.read_bytes().strip()
    assert len(made) == 43
    assert load_token(os.fsencode(place)).is_given(made)
    other = tmp_path / "other"
    assert not load_token(os.fsencode(other)).is_given(made)


def test_a_draft_that_a_dead_server_of_the_same_number_left_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / f"token.{os.getpid()}").touch(mode=0o600)
    load_token(os.fsencode(tmp_path / "token"))
    assert sorted(os.listdir(tmp_path)) == ["token", f"token.{os.getpid()}"]


TOKEN = "a" * 43


def make_wrong(kind: str, path: Path) -> None:
    """Put something at a path that must not be taken for a token."""
    path.touch(mode=0o600)
    path.write_text(TOKEN)
    match kind:
        case "readable by the group":
            path.chmod(0o640)
        case "readable by all":
            path.chmod(0o604)
        case "a link":
            path.rename(path.with_name("elsewhere"))
            path.symlink_to(path.with_name("elsewhere"))
        case "a pipe":
            path.unlink()
            os.mkfifo(path, 0o600)
        case "a directory":
            path.unlink()
            path.mkdir(0o700)
        case "empty":
            path.write_text("")
        case "short":
            path.write_text("a" * 31)
        case "long":
            path.write_text("a" * 513)
        case "two lines":
            path.write_text(f"{TOKEN}\n{TOKEN}\n")
        case "with a blank":
            path.write_text(f"{TOKEN} {TOKEN}")
        case "not text":
            path.write_bytes(b"\xff" * 43)


WRONG = (
    *("readable by the group", "readable by all", "a link", "a pipe", "a directory", "empty", "short", "long"),
    *("two lines", "with a blank", "not text"),
)


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_that_others_may_have_read_or_that_holds_no_token_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "token"
    make_wrong(kind, place)
    with pytest.raises(UsageError) as caught:
        load_token(os.fsencode(place))
    assert caught.value.remedy
    assert TOKEN not in str(caught.value)


def test_a_file_of_another_user_is_refused() -> None:
    with pytest.raises(UsageError, match="belongs to user 0"):
        load_token(b"/etc/hostname")


def test_control_a_file_that_is_right_is_read(tmp_path: Path) -> None:
    place = tmp_path / "token"
    make_wrong("nothing", place)
    assert load_token(os.fsencode(place)).is_given(TOKEN.encode())


def test_tokens_are_compared_in_constant_time_and_have_no_text_form(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    token = Token(TOKEN.encode())
    guesses = [b"", b"a", TOKEN.encode(), b"b" * 43, b"\xff" * 43]
    assert [token.is_given(guess) for guess in guesses] == [False, False, True, False, False]
    assert compared == [(guess, TOKEN.encode()) for guess in guesses]
    guard = Guard(None, token)  # type: ignore[arg-type]
    for text in (repr(token), str(token), f"{token}", repr(guard), repr(vars(http))):
        assert TOKEN not in text


@pytest.mark.parametrize("origin", ["*", "null", "http://*", "http://x:*", "http://x/", "x", "", "http://", "http://ü"])
def test_an_origin_that_stands_for_several_is_refused(origin: str) -> None:
    with pytest.raises(UsageError):
        check_origin(origin)
    assert check_origin("http://app.example.org:8080") == "http://app.example.org:8080"


@pytest.mark.kernel
def test_e2_neither_token_nor_socket_may_lie_where_commands_can_see_them(ground: Ground) -> None:
    """Keep the token or the socket of the HTTP server where commands of the sandbox can see it.

    Control: a command reads a token that lies in the project, and none that lies where it is let.
    """
    sandbox = ground.sandbox()
    (ground.project / "token").write_text(TOKEN)
    assert sandbox.run("cat token").stdout.kept() == TOKEN.encode()
    [playground] = (ground.home / ".local" / "share" / "unspill" / "playground").iterdir()
    (ground.project / "sub").mkdir()
    (ground.home / "way").symlink_to(ground.project / "sub")
    for place in (
        ground.project / "token",
        ground.project / "sub" / "new",
        playground / "t",
        ground.home / "way" / "t",
    ):
        with pytest.raises(UsageError, match=f"can see .*{place.name}"):
            check_unseen(os.fsencode(place), [sandbox])
    hidden = (ground.state / "mcp" / "token", ground.home / "token", ground.home / ".config" / "token")
    for place in hidden:
        check_unseen(os.fsencode(place), [sandbox])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(TOKEN)
        assert TOKEN.encode() not in sandbox.run(f"cat {place}; true").stdout.kept()


@pytest.mark.kernel
@pytest.mark.view("sealed", reason="it is about the view `host`")
def test_in_the_view_of_the_host_only_our_own_directories_are_unseen(ground: Ground) -> None:
    sandbox = ground.sandbox(view="host")
    check_unseen(os.fsencode(ground.state / "mcp" / "token"), [sandbox])
    with pytest.raises(UsageError, match="can see"):
        check_unseen(os.fsencode(ground.home / "token"), [sandbox])


def test_a_server_ends_when_it_is_told_to_though_clients_are_connected(tmp_path: Path) -> None:
    with serving(tmp_path / "served") as served, served.connect() as idle, served.connect() as half:
        assert exchange(idle, served.request()).status == 200
        half.sendall(served.request()[:40])
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(10) == 0
        assert "Traceback" not in served.log.read_text()


TOOLS = ["run", "output", "kill", "changes", "diff", "undo", "read", "write", "list", "edit"]


@contextlib.asynccontextmanager
async def connected(served: Served, mode: str, *, token: str = "", person: Any = None) -> AsyncIterator[Client]:
    """Connect as a program does that was told where the server is, and knows the token."""
    transport = httpx2.AsyncHTTPTransport(uds=served.socket_path) if served.socket_path else None
    headers = {"Authorization": f"Bearer {token or served.token}"}
    async with httpx2.AsyncClient(headers=headers, transport=transport, timeout=30, trust_env=False) as http:
        streams = streamable_http_client(served.url, http_client=http)
        async with Client(streams, mode=mode, elicitation_callback=person) as client:
            yield client


@pytest.mark.kernel
@pytest.mark.parametrize(("place", "mode"), [("port", "auto"), ("socket", "legacy")])
def test_tools_and_resources_work_and_a_person_is_asked(ground: Ground, tmp_path: Path, place: str, mode: str) -> None:
    address = "127.0.0.1:0" if place == "port" else f"unix:{tmp_path}/run/mcp.sock"
    person = Person(DECLINE, say("Allow"))

    async def steps() -> None:
        async with connected(served, mode, person=person) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            assert text_of(await client.call_tool("run", {"command": "echo well > file; cat file"})).endswith("well\n")
            assert "well" in text_of(await client.call_tool("read", {"path": "file"}))
            result = await client.read_resource("unspill://runs/1/stdout")
            assert getattr(result.contents[0], "text", "") == "well\n"
            assert (await client.call_tool("run", {"command": "touch one", "network": True})).is_error
            assert not (await client.call_tool("run", {"command": "touch two", "network": True})).is_error

    with by_http(ground, tmp_path / "log", address=address) as served:
        in_world(steps)
    assert len(person.asked) == 2
    assert not (ground.project / "one").exists()
    assert (ground.project / "two").exists()


@pytest.mark.kernel
@pytest.mark.parametrize("mode", MODES)
def test_progress_comes_while_a_command_runs_and_cancelling_kills_it(ground: Ground, tmp_path: Path, mode: str) -> None:
    word = lasting()
    heard: list[str | None] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async def steps() -> None:
        async with connected(served, mode) as client, connected(served, mode) as other:
            command = {"command": f"echo first; sleep {word}"}
            call = asyncio.create_task(client.call_tool("run", command, progress_callback=listen))
            await until_started(word)
            # Another client does not wait for it
            assert not (await other.call_tool("changes")).is_error
            while not heard:
                await asyncio.sleep(0.02)
            call.cancel()
            await until_gone(word)
            assert text_of(await client.call_tool("run", {"command": "echo well"})).endswith("Output:\nwell\n")

    async def without_token() -> None:
        async with connected(served, mode, token="x" * 43) as client:
            await client.list_tools()

    with by_http(ground, tmp_path / "log") as served:
        in_world(steps)
        with pytest.raises(Exception, match=r"401|[Uu]nauthorized|error"):
            in_world(without_token)
    assert "first" in str(heard[0])


def call_by_http(served: Served, command: str) -> bytes:
    """Return the bytes of a request to run a command."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "run", "arguments": {"command": command}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    return served.request(body=body, change={"Mcp-Name": "run"})


REACH: Final = """
import os, socket, sys
found = []
try: found.append(open(sys.argv[1]).read().strip())
except OSError: pass
try: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 3).close(); found.append("connected")
except OSError: pass
print(found)
"""


@pytest.mark.kernel
def test_e2_a_command_gets_neither_the_token_of_its_own_server_nor_a_connection(ground: Ground, tmp_path: Path) -> None:
    """Read the token of the HTTP server that runs the command, and connect to it.

    Control: from outside, the same program gets both.
    """
    script = ground.write("reach.py", REACH)
    with by_http(ground, tmp_path / "log") as served:
        words = f"python3 -I reach.py {served.mark} {served.port}"
        reply = served.send(call_by_http(served, words))
        assert reply.status == 200
        assert b"Output:\\n[]" in reply.body
        assert served.token.encode() not in reply.body
        # Control: from outside, the same program finds both
        given = [sys.executable, "-I", os.fspath(script), os.fspath(served.mark), str(served.port)]
        done = subprocess.run(given, capture_output=True, text=True, check=True, timeout=30)
        assert done.stdout.strip() == str([served.token, "connected"])


@pytest.mark.kernel
def test_a_token_that_commands_could_read_stops_the_server(ground: Ground) -> None:
    seen = ground.project / "sub" / "token"
    for options in (("--http", "127.0.0.1:0", "--token-file", seen), ("--http", f"unix:{seen}")):
        done = run_cli("mcp", *options, cwd=ground.project)
        assert done.returncode == 2, done
        assert b"can see" in done.stderr
    assert not seen.exists()


@pytest.mark.kernel
def test_an_address_that_others_can_reach_stops_the_server(ground: Ground) -> None:
    done = run_cli("mcp", "--http", "0.0.0.0:8000", cwd=ground.project)
    assert done.returncode == 2, done
    assert b"127.0.0.1:PORT" in done.stderr
    assert not (ground.state / "mcp").exists()


@pytest.mark.kernel
def test_a_server_that_is_told_to_end_kills_what_runs_and_records_it(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "hold"\n')
    word = lasting()
    with by_http(ground, tmp_path / "log") as served, served.connect() as made:
        made.sendall(call_by_http(served, f"sleep {word}"))
        assert until(lambda: processes_with(word))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE_S) == 0
        assert processes_with(word) == []
        assert "Traceback" not in served.log.read_text()
    [run] = ground.sandbox().runs()
    assert run.outcome is not None


@pytest.mark.kernel
def test_a_client_that_hangs_up_ends_its_command(ground: Ground, tmp_path: Path) -> None:
    word = lasting()
    with by_http(ground, tmp_path / "log") as served:
        with served.connect() as made:
            made.sendall(call_by_http(served, f"sleep {word}"))
            assert until(lambda: processes_with(word))
        assert until(lambda: not processes_with(word))
        assert b"Exit code: 0" in served.send(call_by_http(served, "true")).body
