# SPDX-License-Identifier: Apache-2.0
"""The client of `protection.py`, run inside a sandbox by the system's Python: measures both ways to a proxy in turns.

The argument is a JSON object: `ways` (names and ports on loopback), `tunnel` (host and port to ask for), `socket`
(where the bridge of socat leads, if there is one), and how much of what. Prints the samples as JSON.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any

_PATIENT_S = 20.0


def open_tunnel(port: int, tunnel: str) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=_PATIENT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(f"CONNECT {tunnel} HTTP/1.1\r\nHost: {tunnel}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        received = client.recv(4096)
        assert received, head
        head += received
    assert head.startswith(b"HTTP/1.1 200"), head
    return client


def measure_opening(port: int, given: dict[str, Any]) -> float:
    """Return the milliseconds of a whole connection: tunnel, one byte there and back, close."""
    begun = time.perf_counter()
    with open_tunnel(port, given["tunnel"]) as client:
        client.sendall(b"e!")
        assert client.recv(1) == b"!"
    return (time.perf_counter() - begun) * 1000


def measure_round_trip(port: int, given: dict[str, Any]) -> float:
    """Return the milliseconds of one byte there and back on a connection that is open, the mean of many."""
    with open_tunnel(port, given["tunnel"]) as client:
        client.sendall(b"e!")
        assert client.recv(1) == b"!"
        begun = time.perf_counter()
        for _ in range(given["round_trips"]):
            client.sendall(b"!")
            assert client.recv(1) == b"!"
        return float((time.perf_counter() - begun) * 1000 / given["round_trips"])


def measure_down(port: int, given: dict[str, Any]) -> float:
    """Return the MB/s that come in."""
    buffer, left = bytearray(1 << 20), given["bytes"]
    with open_tunnel(port, given["tunnel"]) as client:
        begun = time.perf_counter()
        client.sendall(b"d" + left.to_bytes(8, "big"))
        while left:
            received = client.recv_into(buffer)
            assert received
            left -= received
        return float(given["bytes"] / (time.perf_counter() - begun) / 1e6)


def measure_up(port: int, given: dict[str, Any]) -> float:
    """Return the MB/s that go out."""
    chunk = bytes(1 << 20)
    with open_tunnel(port, given["tunnel"]) as client:
        begun = time.perf_counter()
        client.sendall(b"u" + given["bytes"].to_bytes(8, "big"))
        for _ in range(given["bytes"] // len(chunk)):
            client.sendall(chunk)
        assert client.recv(1) == b"."
        return float(given["bytes"] / (time.perf_counter() - begun) / 1e6)


MEASURED = {
    "opening": measure_opening,
    "round trip": measure_round_trip,
    "down": measure_down,
    "up": measure_up,
}


def measure_ways(given: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Measure everything on every way, in turns.

    Openings come several in a row: what is left to do when one is closed belongs to the same way.
    """
    samples: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in given["ways"]} for kind in MEASURED}
    end = time.monotonic() + given["seconds"]
    for number in range(given["rounds"] + 1):
        for kind, measure in MEASURED.items():
            for way, port in given["ways"].items():
                for _ in range(given["openings"] if kind == "opening" else 1):
                    sample = measure(port, given)
                    if number:
                        samples[kind][way].append(sample)
        if number and time.monotonic() > end:
            break
    return samples


def hold(given: dict[str, Any]) -> int:
    """Open many tunnels, and return how many of them answer while all are open."""
    clients = []
    for _ in range(given["held"]):
        clients.append(open_tunnel(given["ways"]["ours"], given["tunnel"]))
        clients[-1].sendall(b"e")
    answered = 0
    for _ in range(2):
        for number, client in enumerate(clients):
            client.sendall(bytes((number % 251,)))
        answered = sum(client.recv(1) == bytes((number % 251,)) for number, client in enumerate(clients))
    return answered


def start_socat(given: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the bridge as it is usually done, and wait until it listens."""
    port = given["ways"]["socat"]
    listening = f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr"
    bridge = subprocess.Popen(["socat", listening, f"UNIX-CONNECT:{given['socket']}"], stderr=subprocess.DEVNULL)
    end = time.monotonic() + _PATIENT_S
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return bridge
    raise SystemExit("socat does not listen")


def main() -> None:
    given = json.loads(sys.argv[1])
    bridge = start_socat(given) if "socat" in given["ways"] else None
    try:
        print(json.dumps({"samples": measure_ways(given), "held": hold(given)}))
    finally:
        if bridge is not None:
            bridge.kill()


if __name__ == "__main__":
    main()
