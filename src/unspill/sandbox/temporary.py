# SPDX-License-Identifier: Apache-2.0
"""A sandbox over an empty directory of its own, which goes with all that was ever written in it.

For whoever has no project, only something to try: a sample of an evaluation, a snippet. Nothing of the person's lies
there, so nothing is masked, and all that a run changes is held for the next.
"""

from __future__ import annotations

import os
import select
import tempfile

from unspill.errors import PolicyError, SandboxUnavailable
from unspill.layers.lifecycle import discard_stacks, playground_dir, tmp_dir
from unspill.layers.locks import lock_sandbox
from unspill.layers.trees import remove_tree
from unspill.model.policy import Policy, Secrets
from unspill.policy.config import parse_policy
from unspill.policy.merge import with_own
from unspill.policy.paths import contains, show
from unspill.sandbox.sandbox import Sandbox
from unspill.sandbox.settings import read_text

NAME = "temporary"


def open_temporary(policy_file: str | None = None, *, cancel_fd: int | None = None) -> Sandbox:
    """Make a directory and open a sandbox over it; its `/tmp` is kept from run to run.

    Args:
        policy_file: The policy as TOML; by default the person's configuration.
        cancel_fd: A descriptor that is readable where the caller does not want it any more.

    Raises:
        SandboxUnavailable: the caller gave up; nothing is left.
        UsageError: the file is not there, or says what can't be.
        HostError: this machine can't; the remedy says what to do.
        StoreError: the state directory can't be used.
    """
    place = os.path.realpath(tempfile.gettempdir())
    # Not in /tmp: that is kept for the runs, and nothing that is mounted may lie in what they write
    usable = "/var/tmp" if contains(b"/tmp", os.fsencode(place)) else place
    directory = tempfile.mkdtemp(prefix="unspill-", dir=usable)
    try:
        with Sandbox(directory, name=NAME) as usual:
            project = usual._project
        policy = project.means.policy
        if policy_file is not None:
            policy = _read_policy(os.fsencode(policy_file), project.home.path)
        policy = policy.replace(tmp="persistent", after="hold", secrets=Secrets(mask=False))
        sandbox = Sandbox(directory, name=NAME, policy=policy)
    except BaseException:
        remove_tree(os.fsencode(directory))
        raise
    if cancel_fd is not None and _is_readable(cancel_fd):
        remove_temporary(sandbox)
        raise SandboxUnavailable("the caller gave up", remedy="Try again.")
    return sandbox


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _read_policy(path: bytes, home: bytes) -> Policy:
    text = read_text(path)
    if text is None:
        raise PolicyError(f"there is no {show(path)}")
    return with_own(Policy(), parse_policy(text, where=show(path), trusted=True, home=home))


def remove_temporary(sandbox: Sandbox) -> None:
    """Close such a sandbox and remove everything: its directory, what is held, /tmp and playground.

    Raises:
        SandboxUnavailable: a run of it still goes on.
    """
    data, project = sandbox._project.locations.data, sandbox.project
    with lock_sandbox(sandbox._project.store.state, sandbox.id):
        # For good: nobody can want it back where the project itself goes
        discard_stacks(sandbox._project.store, sandbox.id)
    sandbox.close()
    for path in (project, playground_dir(data, project), tmp_dir(data, project, sandbox.name)):
        remove_tree(path)
