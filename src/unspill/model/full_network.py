# SPDX-License-Identifier: Apache-2.0
"""The addresses of a sandbox that has full IP networking, the same in every run: nobody else is on that link.

    command ── INSIDE ──▶ BETWEEN (our namespace, which forwards to public addresses only) ──▶ BEYOND (pasta) ──▶ host

All of them lie in ranges that are closed to the command, so none of them hides a public host.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    IpVersion = Literal[4, 6]

INSIDE: dict[IpVersion, str] = {4: "198.18.75.2", 6: "fd75:6e73:7069:6c6c::2"}
BETWEEN: dict[IpVersion, str] = {4: "198.18.75.1", 6: "fd75:6e73:7069:6c6c::1"}
BEYOND: dict[IpVersion, str] = {4: "198.18.75.5", 6: "fd75:6e73:7069:6c6c::5"}
# Only for DNS: pasta passes the questions on to the resolver of the host
RESOLVER: dict[IpVersion, str] = {4: "198.18.75.6", 6: "fd75:6e73:7069:6c6c::6"}
NETMASK_BITS = 29
# Known beforehand, so that nobody has to ask for them and wait
INSIDE_MAC, BETWEEN_MAC, BEYOND_MAC = "02:75:6e:73:70:02", "02:75:6e:73:70:01", "02:75:6e:73:70:05"
# What is public at most; everything else has no route at all
PUBLIC: dict[IpVersion, tuple[str, int]] = {4: ("0.0.0.0", 0), 6: ("2000::", 3)}
# How the command sees its interface, and how ours are called
INSIDE_LINK, BETWEEN_LINK, BEYOND_LINK = "net0", "inner", "outer"
