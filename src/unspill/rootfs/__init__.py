# SPDX-License-Identifier: Apache-2.0
"""Root file systems of our own: where they come from, how they are checked, unpacked, recorded and switched."""
