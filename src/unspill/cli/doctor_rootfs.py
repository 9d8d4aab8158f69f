# SPDX-License-Identifier: Apache-2.0
"""The row of `unspill doctor` about the rootfs: which is meant, whether it is ready, whether Debian can be built."""

from __future__ import annotations

from unspill.changes.render import safe_text
from unspill.errors import RootfsError
from unspill.host.level import Row
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.level import Standing
    from unspill.model.policy import Policy
    from unspill.sandbox.locations import Locations


def rootfs_row(policy: Policy, locations: Locations) -> Row | None:
    """Return the row; None where the view is another and there is no rootfs."""
    from unspill.rootfs.registry import Registry
    from unspill.sandbox.rootfs_use import find_rootfs
    from unspill.sandbox.settings import rootfs_directory

    is_meant = policy.view == "rootfs"
    directory = locations.rootfs
    try:
        directory = rootfs_directory(policy, locations)
        if not is_meant and not Registry(directory).list():
            return None
        found = find_rootfs(policy.replace(provision=None), locations)
    except RootfsError as error:
        if policy.provision is not None:
            made = policy.provision.label or policy.provision.source
            return _row(f"none yet in {show(directory)}", "note", f"The first run in the view `rootfs` makes {made}.")
        standing: Standing = "missing" if is_meant else "note"
        return _row(safe_text(error.message), standing, "Nothing can be run in the view `rootfs`.", error.remedy)
    used = "Commands see it instead of this machine" if is_meant else 'Used where `view = "rootfs"` is set'
    return _row(f"{safe_text(found.name)}, ready", "ok", f"{used}.")


def _row(value: str, standing: Standing, consequence: str, remedy: str = "") -> Row:
    from unspill.rootfs.debian import check_host

    try:
        check_host()
        debian = "A Debian one can be built here."
    except RootfsError as error:
        debian = f"A Debian one can't be built here: {error.message}."
    return Row(fact="rootfs", value=value, standing=standing, consequence=f"{consequence} {debian}", remedy=remedy)
