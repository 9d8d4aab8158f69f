# SPDX-License-Identifier: Apache-2.0
"""The rules of the whole suite: which user runs what, which bubblewrap is used, what may be skipped.

Nothing that only some tests need belongs here.
"""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path.home() / ".cache" / "unspill-tests"

# Read when hypothesis is imported; its default is a directory in the checkout, which may not be ours.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.fspath(CACHE / "hypothesis"))

import hypothesis  # noqa: E402

# What is collected stays to the end: it would be looked through for garbage again and again
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("unspill")
    group.addoption(
        "--full",
        action="store_true",
        default=os.environ.get("UNSPILL_TEST_FULL") == "1",
        help="run the long suites whole and record their figures",
    )
    group.addoption(
        "--bwrap",
        metavar="PATH",
        default=os.environ.get("UNSPILL_TEST_BWRAP") or shutil.which("bwrap"),
        help="the bubblewrap to test with (default: UNSPILL_TEST_BWRAP, or the first on PATH)",
    )
    group.addoption(
        "--view",
        choices=("sealed", "rootfs"),
        default=os.environ.get("UNSPILL_TEST_VIEW") or "sealed",
        help="the view of sandboxes whose test names none (default: UNSPILL_TEST_VIEW, or sealed)",
    )


def pytest_configure(config: pytest.Config) -> None:
    full = config.getoption("--full")
    # In the environment as well, so that a process started by a test knows it too.
    os.environ["UNSPILL_TEST_FULL"] = "1" if full else "0"
    os.environ["UNSPILL_TEST_VIEW"] = config.getoption("--view")
    # Hooks that tests call leave nothing behind, but in tests of that
    os.environ["UNSPILL_NO_STANDBY"] = "1"
    choose_bwrap(config.getoption("--bwrap"))
    # A shared machine is slow at times and a plain run must not be red by chance, hence no deadline and no
    # randomness; the long runs search further each time.
    hypothesis.settings.register_profile("plain", database=None, deadline=None, derandomize=True, max_examples=50)
    hypothesis.settings.register_profile("full", database=None, deadline=None, max_examples=2000)
    hypothesis.settings.load_profile("full" if full else "plain")
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(NothingIsSkipped())


def choose_bwrap(path: str | None) -> None:
    """Make `path` the bubblewrap that everything started by the tests finds first."""
    if path is None or shutil.which("bwrap") == path:
        return
    if not os.path.isabs(path) or os.path.basename(path) != "bwrap" or not os.access(path, os.X_OK):
        raise pytest.UsageError(f"--bwrap must be the absolute path of an executable named bwrap: {path}")
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(path), os.environ.get("PATH", os.defpath)])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave root's cases out for ordinary users; refuse to run anything else as root.

    A test whose very subject is another view than the chosen one says so by a marker, and is left out too.
    """
    leave_out_other_views(config, items)
    root_cases = [item for item in items if item.get_closest_marker("root")]
    others = [item for item in items if not item.get_closest_marker("root")]
    if os.geteuid() != 0:
        config.hook.pytest_deselected(items=root_cases)
        items[:] = others
    elif others:
        raise pytest.UsageError("run the tests as an ordinary user; root runs its own cases only, with: pytest -m root")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def leave_out_other_views(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is marked as being about other views than the chosen one."""
    view = config.getoption("--view")
    others = []
    for item in items:
        mark = item.get_closest_marker("view")
        if mark is not None and not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: its marker `view` gives no reason")
        if mark is not None and view not in mark.args:
            others.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test that leaves its worker in another directory, instead of one that comes later."""
    yield
    here = os.getcwd()
    if here != os.fspath(item.config.invocation_params.dir):
        os.chdir(item.config.invocation_params.dir)
        raise AssertionError(f"this test left the process in {here}")


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the long suites run whole."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def bwrap(pytestconfig: pytest.Config) -> Path:
    """The bubblewrap under test; it is also the first on PATH."""
    path = pytestconfig.getoption("--bwrap")
    if path is None:
        pytest.skip("bubblewrap is not installed")
    return Path(path)


class NothingIsSkipped:
    """Fails a run in which anything was skipped: a machine made for the tests has all they need."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("failed, because nothing may be skipped here", red=True)
            for nodeid in self.skipped:
                terminalreporter.line(f"SKIPPED {nodeid}")
