# SPDX-License-Identifier: Apache-2.0
"""Which directories of the host a rootfs may show besides its own, and at which places.

What is private stays private under another name, too: a place inside says nothing about what is shown there.
"""

from __future__ import annotations

from unspill.policy.paths import contains, lies_beneath, normalise, show
from unspill.policy.secrets import SYSTEM_SECRETS, find_secret, home_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Each sandbox has its own of these
_TAKEN = (b"/dev", b"/playground", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/run", b"/var/tmp", b"/workspace")


def place_problem(place: bytes) -> str:
    """Return why nothing can be mounted at a place inside, "" where it can."""
    if not place.startswith(b"/") or b"\0" in place or normalise(place) != place:
        return "is not an absolute and normalised path"
    if place == b"/":
        return "is the rootfs itself"
    taken = next((taken for taken in _TAKEN if contains(taken, place)), None)
    return "" if taken is None else f"is not free: a sandbox has its own {show(taken)}"


def together_problem(places: Iterable[bytes]) -> str:
    """Return why places can't be used side by side, "" where they can."""
    known = sorted(places)
    for place in known:
        if known.count(place) > 1:
            return f"{show(place)} is there twice"
        outer = next((outer for outer in known if lies_beneath(place, outer)), None)
        if outer is not None:
            return f"{show(place)} lies inside {show(outer)}"
    return ""


def directory_problem(directory: bytes, *, home: bytes, own: tuple[bytes, ...]) -> str:
    """Return why a directory of the host is never mounted. `own` are unspill's own directories."""
    if not directory.startswith(b"/") or b"\0" in directory or normalise(directory) != directory:
        return "is not an absolute and normalised path"
    if contains(directory, home):
        return "is or contains your home directory"
    if any(contains(other, directory) or contains(directory, other) for other in own):
        return "is where unspill keeps its own files"
    if any(contains(kernel, directory) for kernel in (b"/dev", b"/proc", b"/sys", b"/run")):
        return "belongs to the kernel or to services"
    if find_secret(directory, home) is not None:
        return "is never shown to a sandbox"
    inner = next((path for path in (*home_secrets(home), *SYSTEM_SECRETS) if contains(directory, path)), None)
    return "" if inner is None else f"contains {show(inner)}, which is never shown to a sandbox"
