# SPDX-License-Identifier: Apache-2.0
"""Which changes are about secrets of a project: where one belongs, or above a directory that may have some.

Such a change needs a person's consent, whether or not there is a secret now. Knows names only, no disk.
"""

from __future__ import annotations

from unspill.policy.paths import fold
from unspill.policy.held import SECRET, SECRET_BELOW
from unspill.policy.paths import contains
from unspill.policy.secrets import masked_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.change import Change
    from unspill.model.policy import Secrets
    from unspill.policy.held import Verdict


class SecretPlaces:
    """Judges changes that are about secrets of one root: where a secret belongs, or above it.

    `names` has a component of every path that may matter, folded, for the first look at many.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._names = frozenset(fold(name, {}) for name in masked_names(secrets))
        self._directories = frozenset(fold(path, {}) for path in secrets.directories if secrets.mask)
        self.names = self._names | {part for path in self._directories for part in path.split(b"/")}

    def judge(self, change: Change, parts: list[bytes]) -> tuple[Verdict, str]:
        """Return the verdict on a change whose folded path is `parts`."""
        path = b"/".join(parts)
        directory, _, name = path.rpartition(b"/")
        is_place = not directory or directory in self._directories
        entry = change.entry
        # A directory of that name, such as a virtual Python called .env, is no secret
        if is_place and name in self._names and (change.base_kind if entry is None else entry.kind) != "dir":
            return SECRET.opinion
        gives_way = change.base_kind == "dir" and change.kind in ("deleted", "replaced")
        if gives_way and any(contains(path, other) for other in self._directories):
            return SECRET_BELOW.opinion
        return "ordinary", ""
