# SPDX-License-Identifier: Apache-2.0
"""What happened in a project or in one session of an agent, at a glance: the facts, and one page that shows them."""
