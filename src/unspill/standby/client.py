# SPDX-License-Identifier: Apache-2.0
"""The program that agents start: `python -IS client.py hook AGENT`, `python -IS client.py run ...`.

Python compiles it at each start, so all that it does is in a module, which Python has compiled.
"""

if __name__ == "__main__":
    import sys

    sys.path.append(__file__.rpartition("/")[0])
    # By this name there is no package to be loaded before it
    __import__("handover").main()
