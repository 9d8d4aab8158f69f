# SPDX-License-Identifier: Apache-2.0
"""The rules that a proxy goes by: those of `policy.egress`, which configuration and questions share."""

from __future__ import annotations

from unspill.policy.egress import Rules, parse_rules

__all__ = ["Rules", "parse_rules"]
