# SPDX-License-Identifier: Apache-2.0
"""Why a program could not find a host: told by its own words, and only where a sandbox is the reason."""

import pytest

from unspill.model.plan import HostNetwork, NoNetwork, ProxyNetwork
from unspill.model.run import Exited, NeverStarted, Output
from unspill.sandbox.result import network_hints

WORDS = {
    "curl": b"curl: (6) Could not resolve host: example.org\n",
    "git": b"fatal: unable to access 'https://example.org/': Could not resolve host: example.org\n",
    "wget": b"wget: unable to resolve host address 'example.org'\n",
    "python": b"urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>\n",
    "node": b"npm error errno EAI_AGAIN\n",
    "go": b"dial tcp: lookup example.org: connection refused\n",
    "java": b"Caused by: java.nio.channels.UnresolvedAddressException\n",
    "a socket": b"OSError: [Errno 101] Network is unreachable\n",
}
FAILED = Exited(code=1)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_failed_look_up_is_explained(words: bytes) -> None:
    for outputs in ((Output(head=words), Output()), (Output(), Output(head=b"x", tail=words, left_out=9))):
        (off,) = network_hints(NoNetwork(), FAILED, *outputs)
        assert (off.code, bool(off.remedy)) == ("network-off", True)
        (by_proxy,) = network_hints(ProxyNetwork(hosts=("example.org",)), FAILED, *outputs)
        assert by_proxy.code == "network-by-proxy"
        assert network_hints(HostNetwork(), FAILED, *outputs) == ()


def test_other_failures_have_other_reasons() -> None:
    assert network_hints(NoNetwork(), FAILED, Output(head=b"No such file or directory"), Output()) == ()
    never = NeverStarted(reason="Network is unreachable")
    assert network_hints(NoNetwork(), never, Output(head=WORDS["curl"])) == ()
