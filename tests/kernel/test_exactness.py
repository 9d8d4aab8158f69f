# SPDX-License-Identifier: Apache-2.0
"""Nothing missed, nothing invented: random operations in stacks of runs against whole pictures of the merged view."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from tests.figures import record_figure
from tests.kernel.exactness_oracle import Picture, Told, expected
from unspill.changes.scan import scan
from unspill.model.change import ChangeSet
