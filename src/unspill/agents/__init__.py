# SPDX-License-Identifier: Apache-2.0
"""What is known of coding agents: the homes of whole agents, and Claude Code's plug-in."""
