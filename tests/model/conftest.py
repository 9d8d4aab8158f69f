# SPDX-License-Identifier: Apache-2.0
"""Offers the fixtures of a person's machine to the tests of the model."""

from tests.prepared import prepared_programs
from tests.support import ground, known_facts, no_spawner_survives, trusted_bwrap

__all__ = ["ground", "known_facts", "no_spawner_survives", "prepared_programs", "trusted_bwrap"]
