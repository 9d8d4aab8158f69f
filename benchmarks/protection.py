# SPDX-License-Identifier: Apache-2.0
"""What protection costs: starting with the filter and the limits, with the proxy too, and the proxy against socat.

The library's own run of `true`, everything included, in turns: without filter and limits, which no other run ever is,
with both as every run has them, and with a proxy besides. The command line is measured with and without a proxy.

Then the two ways out of a sandbox to the same proxy: what they carry, and how fast they answer. Ours is a listener made
inside the network namespace and served from outside. The usual one is socat inside, from a port on loopback to a Unix
socket that is bound into the sandbox, on which the same proxy listens. Both are in one run (`proxy_client.py`), both
proxies are in this process; the server behind them is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import socket as Socket
from typing import Any

from measuring import (
    Case,
    Options,
    Turns,
    allow_descriptors,
    compiled_environ,
    fast,
    make_project,
    parse_options,
    report,
    run_program,
    scratch,
    unspill_program,
)

from unspill import Exited, Limits, Policy, Sandbox
from unspill.model.plan import PROXY_PORT, Bind, File, ProxyNetwork
from unspill.model.policy import Network
from unspill.model.run import RunId
from unspill.network.proxy import Proxy, open_connection
from unspill.policy.hosts import parse_rules
from unspill.runner.perform import perform
from unspill.runner.watch import RunControl
from unspill.sandbox import planning

PROTECTED_BAR = 1.15
PROXY_BAR = 1.4
HOSTS = ("example.org",)
# Root has cgroups where nobody else has
AS_ROOT = not os.getuid()
UNLIMITED = Limits(
    wall_s=None,
    output_bytes=None,
    layer_bytes=None,
    layer_entries=None,
    file_bytes=None,
    processes=None,
    memory_bytes=None,
    open_files=None,
)
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


def main() -> None:
    options = parse_options(__doc__ or "")
    # Both ends of all connections are in this process
    held = min(HELD, (allow_descriptors(4 * HELD + 256) - 256) // 4)
    # Before there is any thread: it is a fork
    server = Server()
    try:
        with scratch() as directory:
            cases = [*measure_library(directory, options), *measure_command_line(directory, options)]
            with Sandbox(make_project(directory, "bridged"), policy=Policy(allow_root=AS_ROOT)) as sandbox:
                cases += measure_ways(sandbox, server, directory, held, options)
                version = sandbox.facts.bwrap.version if sandbox.facts.bwrap else "none"
                note = f"bwrap {version}, engine {sandbox.engine}, cgroup {sandbox.facts.cgroup}"
    finally:
        server.close()
    report("protection", cases, options, [note])


def measure_library(directory: Path, options: Options) -> list[Case]:
    bare = Sandbox(make_project(directory, "bare"), policy=Policy(limits=UNLIMITED, allow_root=AS_ROOT))
    bare._project = bare._project.with_means(facts=bare.facts.replace(cgroup="none"))
    protected = Sandbox(make_project(directory, "protected"), policy=Policy(allow_root=AS_ROOT))
    proxied = Sandbox(
        make_project(directory, "proxied"), policy=Policy(network=Network(hosts=HOSTS), allow_root=AS_ROOT)
    )
    turns = Turns(seconds=options.pick(3, 15, 60), rounds=options.pick(40, 250, 1000))

    def run_bare() -> None:
        with no_filter():
            run_true(bare)

    with no_filter():
        assert b"Seccomp:\t0" in bare.run(["cat", "/proc/self/status"]).stdout.kept()
    turns.run({"bare": run_bare, "protected": lambda: run_true(protected), "proxied": lambda: run_true(proxied)})
    for sandbox in (bare, protected, proxied):
        sandbox.close()
    return [
        Case(words, turns.fast(name), "ms", turns.fast("bare"), bar, samples=turns.samples[name])
        for name, words, bar in (
            ("protected", "library run of true with filter and limits", PROTECTED_BAR),
            ("proxied", "library run of true with filter, limits and proxy", PROXY_BAR),
        )
    ]


@contextmanager
def no_filter() -> Iterator[None]:
    """Have plans made without a filter of system calls, for which there is no setting."""
    names = vars(planning)
    build = names["build_filter"]
    names["build_filter"] = lambda *_given: b""
    try:
        yield
    finally:
        names["build_filter"] = build


def run_true(sandbox: Sandbox) -> None:
    result = sandbox.run(["true"])
    assert result.exit_code == 0, result


def measure_command_line(directory: Path, options: Options) -> list[Case]:
    """Measure the program with and without a proxy: there the modules of the proxy have to be loaded as well."""
    turns = Turns(seconds=options.pick(2, 8, 32), rounds=options.pick(12, 60, 240))

    def configure(name: str, settings: str) -> Path:
        config = directory / f"{name}-config"
        (config / "unspill").mkdir(parents=True)
        (config / "unspill" / "config.toml").write_text(f"allow_root = {str(AS_ROOT).lower()}\n[network]\n{settings}\n")
        make_project(directory, name)
        return config

    def run(name: str) -> None:
        environ = {**compiled, "XDG_CONFIG_HOME": str(configs[name])}
        run_program([unspill_program(), "run", "--project", str(directory / name), "--", "true"], environ)

    compiled = compiled_environ(directory)
    configs = {
        "plain-cli": configure("plain-cli", "hosts = []"),
        "proxied-cli": configure("proxied-cli", f"hosts = {[*HOSTS]}"),
    }
    turns.run({name: partial(run, name) for name in configs})
    plain, proxied = turns.fast("plain-cli"), turns.samples["proxied-cli"]
    words = "unspill run -- true with a proxy, against without"
    return [Case(words, turns.fast("proxied-cli"), "ms", plain, PROXY_BAR, samples=proxied)]


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


def measure_ways(sandbox: Sandbox, server: Server, directory: Path, held: int, options: Options) -> list[Case]:
    """Measure both ways in one run, and how many connections ours holds."""
    has_socat = shutil.which("socat") is not None
    given = {
        "ways": {"ours": PROXY_PORT, **({"socat": PROXY_PORT + 1} if has_socat else {})},
        "tunnel": TUNNEL,
        "socket": os.fsdecode(INSIDE) + "/socket",
        "seconds": options.pick(2, 14, 56),
        "rounds": options.pick(3, 20, 80),
        "openings": 30,
        "round_trips": 300,
        "bytes": options.pick(16, 64, 256) << 20,
        "held": held,
    }
    measured = run_client(sandbox, server, directory, given)
    cases = [judge(measured["samples"][kind], words, unit, is_rate) for kind, words, unit, is_rate in JUDGED]
    return [
        *cases,
        Case(f"connections held at once, of {held}", measured["held"], "", held, 1.0, at_least=True, is_counted=True),
    ]


def judge(samples: dict[str, list[float]], words: str, unit: str, is_rate: bool) -> Case:
    ours = fast(samples["ours"], is_rate=is_rate)
    if "socat" not in samples:
        words, bridged = f"{words} (socat is not installed)", None
    else:
        words, bridged = f"{words}, against socat", fast(samples["socat"], is_rate=is_rate)
    return Case(words, ours, unit, bridged, 1.0, at_least=is_rate, samples=samples["ours"])


def run_client(sandbox: Sandbox, server: Server, directory: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Run the client in the sandbox's own plan, with the Unix socket bound into it."""
    bridge = directory / "bridge"
    bridge.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(bridge / "socket"))
    listener.listen(1024)
    proxies = [start_proxy(listener.detach(), server)]
    plan = sandbox.plan(["python3", os.fsdecode(INSIDE) + ".py", json.dumps(given)])
    script = (Path(__file__).parent / "proxy_client.py").read_bytes()
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


if __name__ == "__main__":
    main()
