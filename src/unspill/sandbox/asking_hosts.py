# SPDX-License-Identifier: Apache-2.0
"""Questions while a command runs: a host that no rule covers is asked for, and the connection waits for the answer.

What is allowed holds for the rest of the run, or for as long as the person says. Loaded only with `network.ask`.
"""

from __future__ import annotations

from unspill.errors import DeniedError, UnspillError
from unspill.model.permission import Egress
from unspill.sandbox.occasion import occasion_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import RunId
    from unspill.model.plan import Plan
    from unspill.network.proxy import Ask
    from unspill.permissions.broker import Broker
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.requesting import Request

_NOT_ALLOWED = "it was not allowed"


def make_asker(opened: Opened, request: Request, plan: Plan, broker: Broker, run: RunId) -> Ask:
    """Return what the proxy of a run asks for a host; it says nothing where that is allowed, else why it is not."""
    # Before the command begins: afterwards it may have changed the program that it is
    occasion = occasion_of(opened, request, plan) | {"run": run}

    def ask(host: str) -> str:
        asked = Egress(**occasion, hosts=(host,))
        try:
            broker.obtain(asked).take(asked)
        except DeniedError as error:
            return f"{_NOT_ALLOWED} ({error.reason})" if error.reason else _NOT_ALLOWED
        except UnspillError as error:
            return f"it can't be asked for ({error.code})"
        return ""

    return ask
