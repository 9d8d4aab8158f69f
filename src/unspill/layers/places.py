# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the state directory. Ids come checked from the store, so none of them is a path.

Makes no directory and decides nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import LayerId, RunId, SandboxId

DROPPED = b".dropped"


def upper_dir(state: bytes, layer: LayerId) -> bytes:
    """Return the upper directory of a layer."""
    return b"%b/layers/%b" % (state, layer.encode())


def dropped_dir(state: bytes, layer: LayerId) -> bytes:
    """Return where an upper directory lies from when it is dropped until it is removed."""
    return upper_dir(state, layer) + DROPPED


def base_dir(state: bytes, layer: LayerId) -> bytes:
    """Return where the repository is kept as it stood when the run began that a sealed layer is of."""
    return b"%b/bases/%b" % (state, layer.encode())


def work_dir(state: bytes, layer: LayerId) -> bytes:
    """Return the work directory of an open layer."""
    return b"%b/work/%b" % (state, layer.encode())


def base_link(state: bytes, layer: LayerId) -> bytes:
    """Return the link to the repository as it stood when the run began that an open layer is of."""
    return work_dir(state, layer) + b"/base"


def spill_dir(state: bytes, run: RunId) -> bytes:
    """Return the directory for output of a run that a row can't hold; whoever spills makes it, 0700."""
    return b"%b/runs/%b" % (state, run.encode())


def lock_file(state: bytes, sandbox: SandboxId) -> bytes:
    """Return the file that stands for a sandbox's lock."""
    return b"%b/locks/%b" % (state, sandbox.encode())
