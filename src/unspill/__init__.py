# SPDX-License-Identifier: Apache-2.0
"""unspill: run anything, spill nothing.

    from unspill import Sandbox

    with Sandbox("/path/to/project") as sandbox:
        result = sandbox.run("make test")
        print(result.exit_code, result.stdout.text)
        for change in result.changes:
            print(change.kind, change.name)

Names are loaded when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

__version__ = "0.2.0"

_WHERE = {
    "Sandbox": "unspill.sandbox.sandbox",
    "SandboxFiles": "unspill.sandbox.files",
    "RunResult": "unspill.sandbox.result",
    "Policy": "unspill.model.policy",
    "Limits": "unspill.model.policy",
    "Change": "unspill.model.change",
    "ChangeSet": "unspill.model.change",
    "Selection": "unspill.model.change",
    "Hunks": "unspill.model.change",
    "Operation": "unspill.model.operation",
    "Skipped": "unspill.model.operation",
    "Exited": "unspill.model.run",
    "Signalled": "unspill.model.run",
    "TimedOut": "unspill.model.run",
    "Cancelled": "unspill.model.run",
    "LimitReached": "unspill.model.run",
    "NeverStarted": "unspill.model.run",
    "Output": "unspill.model.run",
    "Started": "unspill.model.run",
    "OutputChunk": "unspill.model.run",
    "Ended": "unspill.model.run",
    "Network": "unspill.model.policy",
    "Connection": "unspill.model.run",
    "Denial": "unspill.model.run",
    "Secrets": "unspill.model.policy",
    "Rules": "unspill.model.policy",
    "Rootfs": "unspill.model.rootfs",
    "RootfsSpec": "unspill.model.rootfs",
    "RootfsRegistry": "unspill.sandbox.rootfs",
    "Approver": "unspill.permissions.approvers",
    "Callback": "unspill.permissions.approvers",
    "DenyAll": "unspill.permissions.approvers",
    "Question": "unspill.model.permission",
    "Allowed": "unspill.model.permission",
    "Denied": "unspill.model.permission",
    "DeniedError": "unspill.errors",
    "FileError": "unspill.errors",
    "UnspillError": "unspill.errors",
    "Live": "unspill.sandbox.live",
    "Session": "unspill.sandbox.sessions",
    "Run": "unspill.model.run",
    "Hint": "unspill.model.run",
    "Traffic": "unspill.model.run",
    "UsageError": "unspill.errors",
    "HostError": "unspill.errors",
    "SandboxUnavailable": "unspill.errors",
    "ProjectBusy": "unspill.errors",
    "ApplyFailed": "unspill.errors",
    "StoreError": "unspill.errors",
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.errors import ApplyFailed as ApplyFailed
    from unspill.errors import DeniedError as DeniedError
    from unspill.errors import FileError as FileError
    from unspill.errors import HostError as HostError
    from unspill.errors import ProjectBusy as ProjectBusy
    from unspill.errors import SandboxUnavailable as SandboxUnavailable
    from unspill.errors import StoreError as StoreError
    from unspill.errors import UnspillError as UnspillError
    from unspill.errors import UsageError as UsageError
    from unspill.model.change import Change as Change
    from unspill.model.change import ChangeSet as ChangeSet
    from unspill.model.change import Hunks as Hunks
    from unspill.model.change import Selection as Selection
    from unspill.model.operation import Operation as Operation
    from unspill.model.operation import Skipped as Skipped
    from unspill.model.permission import Allowed as Allowed
    from unspill.model.permission import Denied as Denied
    from unspill.model.permission import Question as Question
    from unspill.model.policy import Limits as Limits
    from unspill.model.policy import Network as Network
    from unspill.model.policy import Policy as Policy
    from unspill.model.policy import Rules as Rules
    from unspill.model.policy import Secrets as Secrets
    from unspill.model.rootfs import Rootfs as Rootfs
    from unspill.model.rootfs import RootfsSpec as RootfsSpec
    from unspill.model.run import Cancelled as Cancelled
    from unspill.model.run import Connection as Connection
    from unspill.model.run import Denial as Denial
    from unspill.model.run import Ended as Ended
    from unspill.model.run import Exited as Exited
    from unspill.model.run import Hint as Hint
    from unspill.model.run import LimitReached as LimitReached
    from unspill.model.run import NeverStarted as NeverStarted
    from unspill.model.run import Output as Output
    from unspill.model.run import OutputChunk as OutputChunk
    from unspill.model.run import Run as Run
    from unspill.model.run import Signalled as Signalled
    from unspill.model.run import Started as Started
    from unspill.model.run import TimedOut as TimedOut
    from unspill.model.run import Traffic as Traffic
    from unspill.permissions.approvers import Approver as Approver
    from unspill.permissions.approvers import Callback as Callback
    from unspill.permissions.approvers import DenyAll as DenyAll
    from unspill.sandbox.files import SandboxFiles as SandboxFiles
    from unspill.sandbox.live import Live as Live
    from unspill.sandbox.result import RunResult as RunResult
    from unspill.sandbox.rootfs import RootfsRegistry as RootfsRegistry
    from unspill.sandbox.sandbox import Sandbox as Sandbox
    from unspill.sandbox.sessions import Session as Session

__all__ = ["__version__", *_WHERE]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'unspill' has no attribute {name!r}")
    from importlib import import_module  # lazy: library

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
