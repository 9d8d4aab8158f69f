# SPDX-License-Identifier: Apache-2.0
"""The program that a library's spawner process runs: `python -I -S spawner_main.py own|shared PID`.

Without site-packages it starts a third faster; so it has to say by itself where this package lies.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/", 3)[0])
    from unspill.host.spawner import main

    main()
