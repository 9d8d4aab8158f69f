# SPDX-License-Identifier: Apache-2.0
"""The standby: unspill, already started, for the many short commands of a coding agent."""
