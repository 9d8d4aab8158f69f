# SPDX-License-Identifier: Apache-2.0
"""An internet of its own for one caller: two network namespaces, a cable between them, servers and names.

Started in a user namespace with every capability in it, so no root is needed. The first namespace is the caller's
host; in the second one every address of the table answers, those that nobody may reach too. Who was connected to and
which names were asked for is written down as it happens. Ends with its standard input.

    python -m tests.kernel.internet_program DIRECTORY
"""

import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final

from unspill.host import libc

MS_BIND: Final = 0x1000
HOST4, HOST6 = "50.0.0.2", "2a00:50::2"
PUBLIC4, PUBLIC6, OTHER4, LITERAL = "93.184.215.14", "2a00:93::14", "93.184.215.66", "45.45.45.45"
NAMESERVER = "50.0.0.53"
PRIVATE, METADATA, METADATA6 = "10.1.2.3", "169.254.169.254", "fd00:ec2::254"
NAT64, METADATA_OTHER, CARRIER = "64:ff9b::a9fe:a9fe", "168.63.129.16", "100.100.100.200"
INWARD: Final = (PRIVATE, METADATA, METADATA6, NAT64, METADATA_OTHER, CARRIER)
SERVED: Final = (PUBLIC4, PUBLIC6, OTHER4, LITERAL, NAMESERVER, *INWARD)
FORBIDDEN: Final = (*INWARD, HOST4, HOST6, "127.0.0.1")

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "example.org": (PUBLIC4, PUBLIC6),
    "www.example.org": (PUBLIC4,),
    "pip.example.org": (PUBLIC4,),
    "npm.example.org": (PUBLIC4,),
    "six.example.org": (PUBLIC6,),
    "evil.org": (OTHER4,),
    "evilexample.org": (OTHER4,),
    "example.net": (OTHER4,),
    "a.example.net": (PUBLIC4,),
    "b.c.example.net": (PUBLIC6,),
    "bad.example.net": (METADATA,),
    "mixed.example.net": (PUBLIC4, PRIVATE),
    "own.example.net": (HOST4,),
    "api.example.com": (PUBLIC4,),
    "private.example.org": (PRIVATE,),
    "mixed.example.org": (PUBLIC4, PRIVATE),
    "mixed6.example.org": (PUBLIC4, METADATA6),
    "metadata.example.org": (METADATA,),
    "metadata6.example.org": (METADATA6,),
    "azure.example.org": (METADATA_OTHER,),
    "alibaba.example.org": (CARRIER,),
    "nat64.example.org": (NAT64,),
    "mapped.example.org": ("::ffff:10.1.2.3",),
    "loopback.example.org": ("127.0.0.1",),
    "any.example.org": ("0.0.0.0",),
    "own.example.org": (HOST4,),
    "own6.example.org": (HOST6,),
    "silent.example.org": ("93.184.215.99",),
    "mirror.lan": (PRIVATE,),
    "files.lan": (PRIVATE,),
    "nexus": (PRIVATE,),
    "trap.lan": (METADATA,),
}
# The first question is answered with a public address, every other one with a private one
REBOUND: Final = "rebind.example.org"
# The first question is answered with a private address, every other one with one of the host itself
REBOUND_INWARD: Final = "rebind.lan"


class Site(SimpleHTTPRequestHandler):
    """Files, a repository that git can clone and be pushed to, as many bytes as one asks for, and an ear for posts."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/repo.git/"):
            self._git(b"")
        elif self.path.startswith("/bytes/"):
            self._answer(b"x" * int(self.path.rpartition("/")[2]))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/repo.git/"):
            self._git(sent)
        else:
            self._answer(b"%d bytes\n" % len(sent))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _git(self, sent: bytes) -> None:
        path, _, query = self.path.partition("?")
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": os.fspath(self.directory),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(sent)),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=sent, env=variables, capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = [line.decode().split(": ", 1) for line in head.split(b"\r\n")]
        self.send_response(next((int(value.split()[0]) for name, value in fields if name == "Status"), 200))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class Server(ThreadingHTTPServer):
    """Serves both protocols of one port, and writes down to which address each client has come."""

    address_family = socket.AF_INET6
    daemon_threads = True
    request_queue_size = 256
    wrapping: ssl.SSLContext | None = None
    book: Path

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # without the question for its own name that a web server begins with

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        met, port = connection.getsockname()[:2]
        note(self.book, f"{met.removeprefix('::ffff:') if '.' in met else met} {port}")
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.wrapping is not None:
            request.settimeout(20)
            request = self.wrapping.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return


def note(book: Path, line: str) -> None:
    """Append a line; small enough to be one write."""
    with book.open("a") as file:
        file.write(f"{line}\n")


def serve(directory: Path, port: int, *, is_secure: bool = False) -> None:
    """Serve the files on a port of every address of this namespace."""
    Server.book = directory / "met"
    server = Server(("::", port), partial(Site, directory=os.fspath(directory / "files")))
    if is_secure:
        server.wrapping = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.wrapping.load_cert_chain(directory / "example.pem")
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_names(directory: Path) -> None:
    """Answer questions for names."""
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind((NAMESERVER, 53))
    times = inward = 0
    while True:
        question, asker = ear.recvfrom(1500)
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace"))
            at += 1 + question[at]
        name, kind = ".".join(labels).lower(), int.from_bytes(question[at + 1 : at + 3])
        note(directory / "asked", f"{name} {kind}")
        answers = NAMES.get(name, ())
        if name == REBOUND:
            times += kind == 1
            answers = (PUBLIC4,) if times == 1 else (PRIVATE,)
        elif name == REBOUND_INWARD:
            inward += kind == 1
            answers = (PRIVATE,) if inward == 1 else ("127.0.0.1",)
        is_known = name in NAMES or name in (REBOUND, REBOUND_INWARD)
        ear.sendto(answer(question[: at + 5], kind, answers, is_known=is_known), asker)


def answer(question: bytes, kind: int, addresses: tuple[str, ...], *, is_known: bool) -> bytes:
    """Return a message that nobody may keep for later."""
    family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
    packed = [socket.inet_pton(family, text) for text in addresses if family and (":" in text) == (kind == 28)]
    head = question[:2] + struct.pack(">HHHHH", 0x8180 if is_known else 0x8183, 1, len(packed), 0, 0)
    records = [b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(address)) + address for address in packed]
    return head + question[12:] + b"".join(records)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})


def lay_cable(internet: int) -> None:
    """Connect this namespace, the host's, with the one of another process."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "name", "out0", "type", "veth", "peer", "name", "in0", "netns", str(internet))
    ip("addr", "add", f"{HOST4}/24", "dev", "out0")
    ip("addr", "add", f"{HOST6}/64", "dev", "out0", "nodad")
    ip("link", "set", "out0", "up")
    ip("route", "add", "default", "via", "50.0.0.1")
    ip("route", "add", "default", "via", "2a00:50::1")


def end_cable() -> None:
    """Give the internet its addresses."""
    ip("link", "set", "lo", "up")
    ip("addr", "add", "50.0.0.1/24", "dev", "in0")
    ip("addr", "add", "2a00:50::1/64", "dev", "in0", "nodad")
    ip("link", "set", "in0", "up")
    for address in SERVED:
        ip("addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo", *["nodad"][: ":" in address])


def be_internet(directory: Path, control: socket.socket) -> None:
    """Serve in a namespace of its own until this process is killed."""
    libc.prctl(libc.PR_SET_PDEATHSIG, libc.SIGKILL)
    libc.unshare(libc.CLONE_NEWNET)
    control.send(b"x")
    control.recv(1)
    end_cable()
    serve(directory, 80)
    serve(directory, 25)
    serve(directory, 443, is_secure=True)
    serve(directory, 8443, is_secure=True)
    threading.Thread(target=serve_names, args=(directory,), daemon=True).start()
    control.send(b"x")
    threading.Event().wait()


def replace_files(directory: Path) -> None:
    """Have this mount namespace ask our name server and nobody else."""
    contents = {
        "resolv.conf": f"nameserver {NAMESERVER}\noptions timeout:2 attempts:1\n",
        "nsswitch.conf": "hosts: files dns\n",
        "hosts": "127.0.0.1 localhost\n",
    }
    libc.mount(None, b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    for name, text in contents.items():
        (directory / name).write_text(text)
        libc.mount(os.fsencode(directory / name), os.fsencode(f"/etc/{name}"), None, MS_BIND, None)


def main() -> None:
    directory = Path(sys.argv[1])
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        be_internet(directory, theirs)
    theirs.close()
    ours.recv(1)
    lay_cable(pid)
    replace_files(directory)
    serve(directory, 80)  # of the host itself: on loopback and on its public address
    ours.send(b"x")
    if not ours.recv(1):
        raise SystemExit("the internet could not be started")
    print(os.getpid(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
