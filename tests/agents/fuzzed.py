# SPDX-License-Identifier: Apache-2.0
"""Hostile lines for an MCP server, from a seed: calls with arguments of all sorts, and what is no call at all."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.agents.fuzzed_values import (
    ARGUMENTS,
    METAS,
    METHODS,
    NEEDED,
    ODD,
    PATHS,
    RAW,
    RESOURCES,
    TOOLS_THAT_ARE_NOT,
    UNKNOWN,
)


class Fuzz:
    """A stream of requests from a seed. `places` are put where a value names them."""

    def __init__(self, seed: int, places: dict[str, str]) -> None:
        self._random = random.Random(seed)
        self._places = places

    def request(self) -> tuple[str, Any]:
        """Return a method and parameters."""
        kind = self._random.random()
        if kind < 0.82:
            return "tools/call", self._call()
        if kind < 0.90:
            return "resources/read", {"uri": self._filled(self._of(RESOURCES))}
        params = self._of((None, {}, {"cursor": "x"}, {"cursor": 1}, self._of(ODD)))
        return self._of(METHODS), params if isinstance(params, dict | None) else {"x": params}

    def line(self) -> bytes:
        """Return a line that is no request, or none that a client could wait for."""
        if self._random.random() < 0.7:
            return bytes(self._of(RAW))
        method, params = self.request()
        whole = json.dumps(
            {"jsonrpc": "2.0", "id": self._of((1, "x", -5)), "method": method, "params": params}
        ).encode()
        at = self._random.randrange(len(whole))
        changes: tuple[Callable[[], bytes], ...] = (
            lambda: whole[:at],
            lambda: whole[:at] + bytes([self._random.randrange(1, 256)]).replace(b"\n", b"\r") + whole[at + 1 :],
            lambda: whole[at:] + whole[:at],
        )
        return self._of(changes)().replace(b"\n", b" ")  # type: ignore[no-any-return]

    def is_cancelled(self) -> bool:
        """Tell whether the client changes its mind about a request."""
        return self._random.random() < 0.05

    def is_line(self) -> bool:
        """Tell whether something else than a request comes next."""
        return self._random.random() < 0.12

    def _call(self) -> dict[str, Any]:
        name = self._of(tuple(ARGUMENTS))
        arguments: Any = {}
        for at, (key, values) in enumerate(ARGUMENTS[name].items()):
            needed = at < NEEDED.get(name, 0)
            if self._random.random() < (0.97 if needed else 0.18):
                odd = self._random.random() < 0.05
                arguments[key] = self._filled(self._of(ODD if odd else values))
        if self._random.random() < 0.04:
            arguments[self._of(UNKNOWN)] = self._filled(self._of((*ODD, *PATHS)))
        if self._random.random() < 0.03:
            arguments = self._of(ODD)
        if self._random.random() < 0.04:
            name = self._of(TOOLS_THAT_ARE_NOT)
        call = {"name": name, "arguments": arguments}
        if self._random.random() < 0.06:
            call["_meta"] = self._of(METAS)
        if self._random.random() < 0.04:
            call["requestState"] = self._of(("x", "", "v1.AAAA", "\0", 1, None, "x" * 9000))
            call["inputResponses"] = {"x": {"action": "accept", "content": {"answer": "allow"}}}
        return call

    def _of(self, values: Any) -> Any:
        return self._random.choice(values)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._filled(one) for one in value] if len(value) < 5 else value
        if isinstance(value, str):
            for name, place in self._places.items():
                value = value.replace(name, place)
        return value
