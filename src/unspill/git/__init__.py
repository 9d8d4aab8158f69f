# SPDX-License-Identifier: Apache-2.0
"""Git's own files read as data: objects, references, the index, and what of them a run must find unchanged.

Nothing here runs git.
"""
