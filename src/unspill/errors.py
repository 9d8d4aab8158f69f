# SPDX-License-Identifier: Apache-2.0
"""Everything unspill raises.

    UnspillError                  code, exit_code, remedy
    ├─ UsageError                 bad argument or configuration          2
    │  ├─ PolicyError             a setting is unknown or unreadable
    │  └─ RootRefused             a directory that can't be a root
    ├─ HostError                  this machine can't                     3
    │  ├─ BwrapMissing
    │  ├─ BwrapUnsafe
    │  ├─ NamespacesForbidden
    │  ├─ OverlayUnsupported
    │  └─ RootCallerRefused
    ├─ DeniedError                the policy said no                     4
    ├─ SandboxUnavailable         we failed, not the command             5
    │  ├─ ProjectBusy             another operation is under way
    │  └─ ApplyFailed             rolled back; the project is as it was
    ├─ RootfsError                a rootfs can't be had, nothing is half used  8
    │  ├─ RootfsUnreachable       the mirror or the file can't be read
    │  ├─ RootfsUnverified        it is not what it should be
    │  └─ RootfsUnsafe            the archive would write where it must not
    ├─ StoreError                                                        7
    │  ├─ StoreTooNew
    │  └─ StoreDamaged
    └─ FileError                  a file of the sandbox, with its kind   9

A command that exits with another code than 0 is a result, never an exception.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Literal

    FileErrorKind = Literal[
        "not_found",
        "is_directory",
        "not_a_directory",
        "not_a_file",
        "permission_denied",
        "exists",
        "too_large",
        "not_text",
        "changed",
        "not_found_in_file",
        "ambiguous",
        "failed",
    ]


class UnspillError(Exception):
    """What went wrong, and what the person can do about it."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    default_remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy or self.default_remedy
        if self.remedy:
            # For whoever meets it as a traceback
            self.add_note(self.remedy)


class UsageError(UnspillError):
    """An argument or a setting is wrong."""

    code = "usage"
    exit_code = 2


class PolicyError(UsageError):
    """A setting is unknown, has the wrong type or can't be read: the run stops."""

    code = "policy"
    default_remedy = "Correct the setting, then try again."


class RootRefused(UsageError):
    """This directory can't be a writable root."""

    code = "root-refused"
    default_remedy = "Choose a directory below your home directory that holds only the project."


class HostError(UnspillError):
    """This machine can't do what is asked."""

    code = "host"
    exit_code = 3
    default_remedy = "Run `unspill doctor`: it says what is missing and how to get it."


class BwrapMissing(HostError):
    """No bubblewrap was found."""

    code = "bwrap-missing"
    default_remedy = "Install bubblewrap: apt install bubblewrap, dnf install bubblewrap or pacman -S bubblewrap."


class BwrapUnsafe(HostError):
    """The bwrap that was found could have been written by someone else."""

    code = "bwrap-unsafe"
    default_remedy = "Use a bwrap that root owns, that only root can write, and that is not setuid."


class NamespacesForbidden(HostError):
    """The kernel or a security module forbids user namespaces."""

    code = "namespaces-forbidden"


class OverlayUnsupported(HostError):
    """No engine can put a copy-on-write layer over the project here."""

    code = "overlay-unsupported"


class RootCallerRefused(HostError):
    """The caller is uid 0 and the configuration does not allow it."""

    code = "root-caller"
    default_remedy = "Run unspill as an ordinary user, or set `allow_root = true` in your own configuration."


class DeniedError(UnspillError):
    """The policy does not permit this, or who was asked did not; `reason` is theirs, in one clause."""

    code = "denied"
    exit_code = 4
    reason: str = ""


class SandboxUnavailable(UnspillError):
    """We failed, not the command. Never shown to a model as the command's output."""

    code = "sandbox-unavailable"
    exit_code = 5
    default_remedy = "Run `unspill doctor`. If it finds no problem, this is a bug in unspill: please report it."


class ProjectBusy(SandboxUnavailable):
    """Another operation changes this project right now."""

    code = "project-busy"
    default_remedy = "Wait until it ends, then try again."


class ApplyFailed(SandboxUnavailable):
    """The disk failed or is full; the operation was taken back, or will be at the next start."""

    code = "apply-failed"
    default_remedy = "Free some space or repair the disk, then try again. The changes are still held."


class RootfsError(UnspillError):
    """A rootfs can't be found, fetched, checked or built; none that is half-built is ever used."""

    code = "rootfs"
    exit_code = 8
    default_remedy = "Run `unspill rootfs list` to see which ones you have."


class RootfsUnreachable(RootfsError):
    """A mirror or a file that a rootfs comes from can't be read."""

    code = "rootfs-unreachable"
    default_remedy = "Check the network and the address, or use an archive on disk."


class RootfsUnverified(RootfsError):
    """What was fetched is not what it should be, or a rootfs is not what it was."""

    code = "rootfs-unverified"
    default_remedy = "Don't use it. Fetch it again, from another mirror if necessary, and compare the digest."


class RootfsUnsafe(RootfsError):
    """An archive has an entry that would lead out of its directory, or that nobody needs in a rootfs."""

    code = "rootfs-unsafe"
    default_remedy = "Don't use this archive, or rebuild it without that entry."


class StoreError(UnspillError):
    """The state directory can't be used."""

    code = "store"
    exit_code = 7


class StoreTooNew(StoreError):
    """A newer unspill wrote this state directory."""

    code = "store-too-new"
    default_remedy = "Upgrade unspill, or point UNSPILL_STATE_DIR at another directory."


class StoreDamaged(StoreError):
    """The database is not readable as one."""

    code = "store-damaged"
    default_remedy = "Run `unspill recover`. It restores the last copy of the database and deletes nothing."


class FileError(UnspillError):
    """A file of a sandbox can't be read, listed, written or edited as asked; nothing was written.

    `count` is how often the text to replace is there, if that is what is wrong.
    """

    code = "file"
    exit_code = 9

    def __init__(self, message: str, *, kind: FileErrorKind, remedy: str = "", count: int = 0) -> None:
        super().__init__(message, remedy=remedy)
        self.kind: FileErrorKind = kind
        self.count = count
