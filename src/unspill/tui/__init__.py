# SPDX-License-Identifier: Apache-2.0
"""The review screen: what is held, or was done, to be looked through and picked from in a terminal."""
