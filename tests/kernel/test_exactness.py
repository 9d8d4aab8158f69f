# SPDX-License-Identifier: Apache-2.0
"""Nothing missed, nothing invented: random operations in stacks of runs against whole pictures of the merged view."""



