# SPDX-License-Identifier: Apache-2.0
"""What agents are given: the words of one tool, and thin translations of it into the frameworks that people use."""
