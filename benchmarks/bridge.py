# SPDX-License-Identifier: Apache-2.0
"""The way out of a sandbox, ours and the usual one, to the same proxy: what they carry, and how fast they answer.

Ours is a listener made inside the network namespace and served from outside. The usual one is socat inside, from a port
on loopback to a Unix socket that is bound into the sandbox, on which the same proxy listens. Both are in one run, and
both proxies are in this process; the server behind them is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import threading
from pathlib import Path
from socket import socket as Socket
from typing import Any

from measuring import Case

from unspill import Exited, Sandbox
from unspill.model.plan import PROXY_PORT, Bind, File, ProxyNetwork
from unspill.model.run import RunId
from unspill.network.proxy import Proxy, open_connection
from unspill.policy.hosts import parse_rules
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl

TUNNEL = "example.org:9"
# Never contacted: the connection is led to the server of this benchmark
PUBLIC = "93.184.215.14"
LOOPBACK = bytes((127, 0, 0, 1))
HELD = 500
INSIDE = b"/tmp/bridge"
# Kind of sample, words, unit, and whether more is better
JUDGED = (
    ("opening", "proxy: a connection, one byte there and back", "ms", False),
    ("round trip", "proxy: one byte there and back", "ms", False),
    ("down", "proxy: throughput in", "MB/s", True),
    ("up", "proxy: throughput out", "MB/s", True),
)


class Server:
    """A process that echoes, sends or swallows, as the first byte of a connection says."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(listener.getsockname()[1])
        self._pid = os.fork()
        if not self._pid:
            serve(listener)
        listener.close()

    def connect(self, _address: bytes, _port: int) -> Socket:
        """Lead a connection here, wherever it was going to."""
        return open_connection(LOOPBACK, self.port)

    def close(self) -> None:
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


def serve(listener: socket.socket) -> None:
    threading.stack_size(256 * 1024)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


def serve_one(connection: socket.socket) -> None:
    with connection:
        kind = connection.recv(1)
        if kind == b"e":
            while received := connection.recv(4096):
                connection.sendall(received)
            return
        left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
        buffer = bytearray(1 << 20)
        if kind == b"d":
            for _ in range(left // len(buffer)):
                connection.sendall(buffer)
            return
        while left:
            left -= connection.recv_into(buffer)
        connection.sendall(b".")


def measure_bridges(sandbox: Sandbox, server: Server, directory: Path, arguments: argparse.Namespace) -> list[Case]:
    """Measure both ways in one run, and how many connections ours holds."""
    has_socat = shutil.which("socat") is not None
    measured = run_client(sandbox, server, directory, wanted(arguments, has_socat=has_socat))
    cases = [judge(measured["samples"][kind], words, unit, at_least) for kind, words, unit, at_least in JUDGED]
    held = Case(f"connections held at once, of {HELD}", measured["held"], "", HELD, 1.0, at_least=True)
    return [*cases, held]


def wanted(arguments: argparse.Namespace, *, has_socat: bool) -> dict[str, Any]:
    return {
        "ways": {"ours": PROXY_PORT, **({"socat": PROXY_PORT + 1} if has_socat else {})},
        "tunnel": TUNNEL,
        "socket": os.fsdecode(INSIDE) + "/socket",
        "seconds": 14 * arguments.times,
        "rounds": int(20 * arguments.times),
        "openings": 30,
        "round_trips": 300,
        "bytes": (256 if arguments.full else 64) << 20,
        "held": HELD,
    }


def judge(samples: dict[str, list[float]], words: str, unit: str, at_least: bool) -> Case:
    ours = statistics.median(samples["ours"])
    if "socat" not in samples:
        words, bridged = f"{words} (socat is not installed)", None
    else:
        words, bridged = f"{words}, against socat", statistics.median(samples["socat"])
    return Case(words, ours, unit, bridged, 1.0, at_least=at_least, samples=samples["ours"])


def run_client(sandbox: Sandbox, server: Server, directory: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Run the client in the sandbox's own plan, with the Unix socket bound into it."""
    bridge = directory / "bridge"
    bridge.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(bridge / "socket"))
    listener.listen(1024)
    proxies = [start_proxy(listener.detach(), server)]
    plan = sandbox.plan(["python3", os.fsdecode(INSIDE) + ".py", json.dumps(given)])
    script = (Path(__file__).parent / "bridge_inside.py").read_bytes()
    mounts = (
        *(op for op in plan.mounts if not getattr(op, "upper", None)),
        Bind(source=os.fsencode(bridge), dest=INSIDE, why="the way of socat"),
        File(content=script, dest=INSIDE + b".py", why="the client"),
    )
    plan = plan.replace(mounts=mounts, network=ProxyNetwork(hosts=(TUNNEL,)), cwd=b"/tmp")
    control = RunControl(
        run=RunId("protection"),
        spill_dir=os.fsencode(directory) + b"/spill",
        on_listener=lambda inside: proxies.append(start_proxy(inside, server)),
    )
    try:
        performed = perform(plan, sandbox.facts, control)
    finally:
        for proxy in proxies:
            proxy.close()
            assert proxy.faults == (), proxy.faults
    assert performed.outcome == Exited(code=0), performed
    return dict(json.loads(performed.stdout.kept()))


def start_proxy(listener: int, server: Server) -> Proxy:
    proxy = Proxy(listener, parse_rules([TUNNEL]), resolver=lambda _host: [PUBLIC], connect=server.connect)
    proxy.start()
    return proxy
