# SPDX-License-Identifier: Apache-2.0
"""Archives and OCI layouts for tests, right ones and ones with a single thing wrong.

layout = LayoutMaker(directory)
layout.add([tar_of(*SHELL), tar_of(file("etc/motd", b"hello"))], ref="one")
layout.write()
"""

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unspill.model.rootfs import Installed, Progress
from unspill.rootfs.source import BuildContext

Entry = tuple[tarfile.TarInfo, bytes]
Fields = dict[str, Any]

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    "+gzip": lambda content: gzip.compress(content, mtime=0),
    "+zstd": lambda content: subprocess.run(["zstd", "-q"], input=content, check=True, capture_output=True).stdout,
}


def file(name: str, content: bytes = b"", mode: int = 0o644) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    return entry, content


def directory(name: str, mode: int = 0o755) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    return entry, b""


def symlink(name: str, target: str) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry, b""


def hard_link(name: str, target: str) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.LNKTYPE, target
    return entry, b""


def device(name: str) -> Entry:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.CHRTYPE
    return entry, b""


# As in Alpine: the shell is an absolute link to a program that the host need not have
SHELL = (directory("bin"), file("bin/ourbox", b"#!", mode=0o755), symlink("bin/sh", "/bin/ourbox"))


def tar_of(*entries: Entry) -> bytes:
    """Return a plain tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest(content: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def to_json(document: object) -> bytes:
    return json.dumps(document).encode()


class LayoutMaker:
    """An OCI layout in a directory; what it says can be changed before `write`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.index: Fields = {"schemaVersion": 2, "manifests": []}
        self.mark: object = {"imageLayoutVersion": "1.0.0"}
        self.index_text: bytes | None = None
        top.mkdir(parents=True, exist_ok=True)

    def blob(self, content: bytes, kind: str, algorithm: str = "sha256") -> Fields:
        """Put a blob there and return its descriptor."""
        name = digest(content, algorithm)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(content)
        return {"mediaType": kind, "digest": name, "size": len(content)}

    def path(self, name: str) -> Path:
        """Return where the blob of a digest is."""
        return self.top / "blobs" / name.replace(":", "/")

    def manifest(
        self,
        layers: list[bytes],
        *,
        arch: str = "amd64",
        compress: str = "+gzip",
        algorithm: str = "sha256",
        change: Callable[[Fields, Fields], None] | None = None,
    ) -> Fields:
        """Put a manifest there, with its config and layers, and return its descriptor.

        `change` is given the manifest and the config before they are written; the manifest's own `config` is made
        from the config afterwards, unless `change` set it.
        """
        config: Fields = {
            "os": "linux",
            "architecture": arch.partition("/")[0],
            "rootfs": {"type": "layers", "diff_ids": [digest(layer, algorithm) for layer in layers]},
        }
        if "/" in arch:
            config["variant"] = arch.partition("/")[2]
        blobs = [self.blob(COMPRESS[compress](layer), f"{OCI}.layer.v1.tar{compress}", algorithm) for layer in layers]
        manifest: Fields = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "layers": blobs}
        if change:
            change(manifest, config)
        manifest.setdefault("config", self.blob(to_json(config), f"{OCI}.config.v1+json", algorithm))
        return self.blob(to_json(manifest), f"{OCI}.manifest.v1+json", algorithm)

    def add(self, layers: list[bytes], *, ref: str = "", platform: Fields | None = None, **options: Any) -> Fields:
        """Put a manifest there and into the index."""
        return self.add_descriptor(self.manifest(layers, **options), ref=ref, platform=platform)

    def add_descriptor(self, descriptor: Fields, *, ref: str = "", platform: Fields | None = None) -> Fields:
        """Put a descriptor into the index."""
        if ref:
            descriptor = descriptor | {"annotations": {"org.opencontainers.image.ref.name": ref}}
        if platform is not None:
            descriptor = descriptor | {"platform": platform}
        self.index["manifests"].append(descriptor)
        return descriptor

    def nested(self, *descriptors: Fields, kind: str = f"{OCI}.index.v1+json") -> Fields:
        """Put an index there as a blob and return its descriptor."""
        return self.blob(to_json({"schemaVersion": 2, "mediaType": kind, "manifests": list(descriptors)}), kind)

    def write(self) -> Path:
        """Write the index, and return where the layout is."""
        (self.top / "index.json").write_bytes(self.index_text or to_json(self.index))
        (self.top / "oci-layout").write_bytes(to_json(self.mark))
        return self.top

    def pack(self, path: Path, mode: str = "w") -> Path:
        """Write all of it, and an archive of it."""
        self.write()
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is a text
            for name in sorted(os.listdir(self.top)):
                archive.add(self.top / name, name)
        return path


class Workshop:
    """What a source is given: directories of one attempt, and a list of what was reported."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.tree = top / "tree"
        self.reported: list[Progress] = []
        for name in ("downloads", "scratch", "tree"):
            (top / name).mkdir(parents=True, exist_ok=True)

    @property
    def means(self) -> BuildContext:
        return BuildContext(
            downloads=os.fsencode(self.top / "downloads"),
            scratch=os.fsencode(self.top / "scratch"),
            install=lambda *_: Installed(ok=False, output="nothing is installed"),
            report=self.reported.append,
        )

    def found(self) -> dict[str, str]:
        """Return the tree: for each path its content, `-> target` of a link, or `/` of a directory."""
        content: dict[str, str] = {}
        for path in sorted(self.tree.rglob("*")):
            name = os.fspath(path.relative_to(self.tree))
            if path.is_symlink():
                content[name] = f"-> {os.readlink(path)}"
            else:
                content[name] = "/" if path.is_dir() else path.read_text()
        return content


def without_shell(found: dict[str, str]) -> dict[str, str]:
    """Leave out what every rootfs here has."""
    return {name: content for name, content in found.items() if name not in ("bin", "bin/ourbox", "bin/sh")}
