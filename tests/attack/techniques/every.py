# SPDX-License-Identifier: Apache-2.0
"""All techniques, in the order of the threat model."""

from __future__ import annotations

from typing import Final

from tests.attack.techniques import (
    addresses,
    answers,
    changes,
    conflicts,
    descriptors,
    doors,
    entries,
    files,
    interruptions,
    kernel,
    limits,
    memory,
    names,
    programs,
    proxies,
    questions,
    review,
    settings,
    tunnels,
)
from tests.attack.techniques.record import Technique, merged

MODULES: Final = (
    *(addresses, answers, changes, conflicts, descriptors, doors, entries),
    *(files, interruptions, kernel, limits, memory, names),
    *(programs, proxies, questions, review, settings, tunnels),
)
TECHNIQUES: Final[tuple[Technique, ...]] = merged(*(module.LIST.techniques for module in MODULES))
