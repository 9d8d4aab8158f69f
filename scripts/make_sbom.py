#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print what a wheel consists of and needs, as CycloneDX 1.6: `python scripts/make_sbom.py dist/unspill-*.whl`.

Everything is read from the wheel itself, so the same wheel always gives the same text. What an extra wants is optional
and has a range of versions, not one.
"""

import json
import sys
import uuid
import zipfile
from email.message import Message
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

# Of nobody else's documents
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "unspill.invalid")


def make_sbom(wheel: Path) -> dict[str, Any]:
    """Return the document for a wheel."""
    digest = sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        (place,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(place).decode())
        files = [file_of(name, archive.read(name)) for name in sorted(archive.namelist())]
    main = {
        "type": "application",
        "bom-ref": f"pkg:pypi/{fields['Name']}@{fields['Version']}",
        "name": fields["Name"],
        "version": fields["Version"],
        "description": fields["Summary"],
        "licenses": [{"expression": fields["License-Expression"]}],
        "purl": f"pkg:pypi/{fields['Name']}@{fields['Version']}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "components": files,
    }
    needed = [(wanted, component_of(wanted)) for wanted in requirements_of(fields)]
    required = [found["bom-ref"] for wanted, found in needed if wanted.marker is None]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {"component": main},
        "components": [found for _, found in needed],
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": required}],
    }


def requirements_of(fields: Message) -> list[Requirement]:
    """Return what users may need: all but the tools of those who work on it."""
    found = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
    return [wanted for wanted in found if wanted.marker is None or not wanted.marker.evaluate({"extra": "dev"})]


def component_of(wanted: Requirement) -> dict[str, Any]:
    """Return what is needed, as far as a range of versions says."""
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{wanted.name}",
        "name": wanted.name,
        "scope": "required" if wanted.marker is None else "optional",
        "purl": f"pkg:pypi/{wanted.name}",
        "properties": [{"name": "unspill:requirement", "value": str(wanted)}],
    }


def file_of(name: str, content: bytes) -> dict[str, Any]:
    """Return one file of the wheel."""
    return {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": sha256(content).hexdigest()}]}


if __name__ == "__main__":
    (given,) = sys.argv[1:]
    json.dump(make_sbom(Path(given)), sys.stdout, indent=2)
    sys.stdout.write("\n")
