# SPDX-License-Identifier: Apache-2.0
"""What the tests of root file systems share: a web server on loopback."""

from tests.unit.rootfs.serving import certificate, safe_web, web

__all__ = ["certificate", "safe_web", "web"]
