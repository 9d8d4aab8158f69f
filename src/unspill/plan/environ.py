# SPDX-License-Identifier: Apache-2.0
"""The variables of a sandbox, rebuilt from the caller's by an allow-list of names, and those that lead to its proxy.

HOME, USER, LOGNAME, SHELL and TMPDIR are always set by us; PATH keeps only what the plan shows. View `rootfs` and
container mode have a fixed set, and of the caller's only what the person names: what a command installs with pip lands
in the project, where the next one finds it; caches do not.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.plan import PROXY_PORT, ProxyNetwork
from unspill.plan.view import GIT_CONFIG_FILE, WORKSPACE, home_inside, is_shown
from unspill.policy.defaults import is_allowed_variable, is_refused_variable, is_variable_name
from unspill.policy.paths import normalise, show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unspill.model.plan import MountOp, PlanInput


DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
ROOTFS_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A script that node loads before everything else, so that its own fetch, http and https find the proxy: for versions
# that know no NODE_USE_ENV_PROXY (before 22.21, and 23). NODE_OPTIONS names it by `--require`, which every version has.
NODE_SCRIPT_PATH = b"/run/unspill-node-proxy.js"
_SHELL = b"/bin/sh"
_MOST_DIGITS = 5
# Of the terminal, so that programs write as they would there
_OF_TERMINAL = (b"TERM", b"COLORTERM", b"NO_COLOR", b"TZ")
# The sandbox's own loopback is reached directly: a server that a test starts is not outside.
_DIRECT = ("localhost", "127.0.0.1", "::1")
_JVM = (
    "-Dhttp.proxyHost={host} -Dhttp.proxyPort={port} -Dhttps.proxyHost={host} -Dhttps.proxyPort={port} "
    "-Dhttp.nonProxyHosts={pattern}"
)
# http.proxy in a configuration of git is stronger than the variables, and the project's own .git/config may have one.
_GIT_SETTINGS = (("http.proxy", "{url}"),)


def build_environ(given: PlanInput, mounts: tuple[MountOp, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the variables, sorted by name.

    Raises:
        UsageError: the caller asks for a variable that never enters a sandbox.
    """
    if given.places.rootfs is not None:
        return _with_extra(given, _rootfs_environ(given, given.places.rootfs.shell))
    configured = given.policy.environment
    kept = {
        name: value
        for name, value in given.environ
        if is_allowed_variable(_text(name), configured) and b"\0" not in value
    }
    user = given.places.home.user.encode("utf-8", "surrogateescape")
    shell = kept.get(b"SHELL", _SHELL)
    kept |= {
        b"HOME": home_inside(given.places),
        b"PATH": _reduce_path(kept.get(b"PATH", b""), mounts),
        b"USER": user,
        b"LOGNAME": user,
        b"SHELL": shell if _is_visible(shell, mounts) else _SHELL,
        b"TMPDIR": b"/tmp",
    }
    if given.policy.view == "host" or given.places.lasting_home:
        kept[b"GIT_CONFIG_GLOBAL"] = GIT_CONFIG_FILE
    if not any(name in kept for name in (b"LANG", b"LC_ALL", b"LC_CTYPE")):
        kept[b"LANG"] = b"C.UTF-8"
    return _with_extra(given, kept)


def contained_environ(
    project: bytes,
    configured: tuple[str, ...],
    environ: Mapping[bytes, bytes],
    extra: tuple[tuple[bytes, bytes], ...],
) -> dict[bytes, bytes]:
    """Return the variables of a command in container mode, where the project is at its own path.

    They are a fixed set, of the caller's those that the person names, and those set for this run.

    Raises:
        UsageError: a variable is set for this run that never enters a sandbox.
    """
    return _kept_environ(environ.items(), configured) | _fixed_environ(project) | _checked_extra(extra)


def proxy_variables(port: int, *, host: str = "127.0.0.1", git_count: int = 0, node_script: str = "") -> dict[str, str]:
    """Return the variables for a proxy that listens on a port of the sandbox's loopback.

    A convenience, not a defence: whoever ignores them reaches nothing at all. They hold an address inside the sandbox
    and no secret.

    Args:
        port: The port inside.
        host: The address inside.
        git_count: How many settings of GIT_CONFIG_COUNT there are already; ours come behind them.
        node_script: Where NODE_SCRIPT lies inside, if it was put there.
    """
    url = f"http://{host}:{port}"
    filled = {
        "host": host,
        "port": str(port),
        "url": url,
        "direct": ",".join(_DIRECT),
        "pattern": "|".join((*_DIRECT[:1], "127.*", "[::1]")),
    }
    variables = {row.name: row.value.format_map(filled) for row in PROXY_VARIABLES}
    for number, (key, value) in enumerate(_GIT_SETTINGS, git_count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value.format_map(filled)
    variables["GIT_CONFIG_COUNT"] = str(git_count + len(_GIT_SETTINGS))
    if node_script:
        variables["NODE_OPTIONS"] = f"--require {node_script}"
    return variables


class Variable(Record):
    """One variable; `{host}`, `{port}`, `{url}`, `{direct}` and `{pattern}` are filled in."""

    name: str
    value: str
    why: str


PROXY_VARIABLES = (
    Variable(name="http_proxy", value="{url}", why="curl and git read only the lower-case name for http"),
    Variable(name="HTTP_PROXY", value="{url}", why="Go, Ruby and many others read the upper-case names"),
    Variable(name="https_proxy", value="{url}", why="pip, curl, git, wget, cargo"),
    Variable(name="HTTPS_PROXY", value="{url}", why="npm, Go, rustup"),
    # Some clients fail at once on a socks URL if they lack an optional package, even when they do not need it
    Variable(name="all_proxy", value="{url}", why="what has no variable of its own; all understand http"),
    Variable(name="ALL_PROXY", value="{url}", why="the same"),
    Variable(name="no_proxy", value="{direct}", why="loopback is inside"),
    Variable(name="NO_PROXY", value="{direct}", why="loopback is inside"),
    Variable(name="NODE_USE_ENV_PROXY", value="1", why="node's own fetch and http, from 22.21 and 24 on"),
    Variable(name="npm_config_proxy", value="{url}", why="overrides the project's .npmrc"),
    Variable(name="npm_config_https_proxy", value="{url}", why="overrides the project's .npmrc"),
    Variable(name="npm_config_noproxy", value="{direct}", why="loopback is inside"),
    Variable(name="YARN_HTTP_PROXY", value="{url}", why="yarn 2 and later reads only this"),
    Variable(name="YARN_HTTPS_PROXY", value="{url}", why="yarn 2 and later reads only this"),
    Variable(name="JAVA_TOOL_OPTIONS", value=_JVM, why="the JVM reads no other variable; it prints a note on stderr"),
    Variable(name="ELECTRON_GET_USE_PROXY", value="1", why="its downloader ignores the others without this"),
)
NODE_SCRIPT = rb"""// SPDX-License-Identifier: Apache-2.0
// Leads fetch, http and https of older versions of node to the proxy of this sandbox.
'use strict';
(() => {
  const url = process.env.https_proxy;
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (!url || major >= 24 || (major === 22 && minor >= 21)) return;

  const net = require('net');
  const tls = require('tls');
  const proxy = new URL(url);
  const direct = new Set((process.env.no_proxy || '').split(','));
  const bare = (host) => (host.startsWith('[') ? host.slice(1, -1) : host);

  function tunnel(host, port, done) {
    const socket = net.connect(Number(proxy.port), proxy.hostname);
    const authority = `${host.includes(':') ? `[${host}]` : host}:${port}`;
    let head = '';
    let isDone = false;
    const finish = (error) => {
      if (isDone) return;
      isDone = true;
      socket.removeListener('readable', read);
      socket.removeListener('error', finish);
      socket.removeListener('end', ended);
      if (error) socket.destroy();
      done(error, error ? undefined : socket);
    };
    const ended = () => finish(new Error('the proxy closed the connection'));
    // A byte at a time: what follows the head belongs to whoever gets the socket
    const read = () => {
      for (let byte; !head.endsWith('\r\n\r\n') && (byte = socket.read(1)) !== null; ) head += byte.toString('latin1');
      if (!head.endsWith('\r\n\r\n')) return;
      const status = head.slice(9, head.indexOf('\r\n'));
      const isOpen = head.startsWith('HTTP/1.1 200 ');
      finish(isOpen ? null : new Error(`${authority} is not reachable from this sandbox: ${status}`));
    };
    socket.on('readable', read);
    socket.on('error', finish);
    socket.on('end', ended);
    socket.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`);
  }

  for (const [name, port] of [['http', 80], ['https', 443]]) {
    const agent = require(name).globalAgent;
    const plain = agent.createConnection;
    agent.createConnection = function (options, done) {
      const host = bare(String(options.host || options.hostname || 'localhost'));
      if (options.socketPath || direct.has(host)) return plain.call(this, options, done);
      tunnel(host, options.port || port, (error, socket) => {
        if (error) return done(error);
        done(null, name === 'http' ? socket : tls.connect({ ...options, socket }));
      });
    };
  }

  if (typeof fetch !== 'function') return;
  const key = Symbol.for('undici.globalDispatcher.1');
  const original = globalThis.fetch;
  let isLed = false;
  function connect(options, done) {
    const host = bare(options.hostname);
    const port = options.port || (options.protocol === 'https:' ? 443 : 80);
    const wrap = (socket) => {
      if (options.protocol !== 'https:') return done(null, socket);
      const servername = options.servername || (net.isIP(host) ? undefined : host);
      const secure = tls.connect({ socket, servername, ALPNProtocols: ['http/1.1'] });
      secure.once('error', done);
      secure.once('secureConnect', () => {
        secure.removeListener('error', done);
        done(null, secure);
      });
    };
    if (!direct.has(host)) return tunnel(host, port, (error, socket) => (error ? done(error) : wrap(socket)));
    const socket = net.connect(Number(port), host);
    socket.once('error', done);
    socket.once('connect', () => {
      socket.removeListener('error', done);
      wrap(socket);
    });
  }
  globalThis.fetch = function fetch(input, init) {
    if (!isLed) {
      isLed = true;
      void globalThis.Response; // has node load its client, which then sets the dispatcher
      const Agent = globalThis[key] && globalThis[key].constructor;
      if (Agent) globalThis[key] = new Agent({ connect });
    }
    return original(input, init);
  };
})();
"""


def _with_extra(given: PlanInput, kept: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    extra = _checked_extra(given.extra_environ)
    if isinstance(given.network, ProxyNetwork):
        kept |= dict(given.network.variables) | _proxy_environ(extra)
    kept |= extra
    return tuple(sorted(kept.items()))


def _rootfs_environ(given: PlanInput, shell: bytes) -> dict[bytes, bytes]:
    """Return the variables that a command starts with, before what the caller sets for this run."""
    user = b"root" if given.uid == 0 else given.places.home.user.encode("utf-8", "surrogateescape")
    kept = _kept_environ(given.environ, given.policy.environment) | _fixed_environ(WORKSPACE)
    kept |= {
        b"USER": user,
        b"LOGNAME": user,
        b"SHELL": shell,
        b"XDG_CACHE_HOME": b"/tmp/.cache",
        b"npm_config_cache": b"/tmp/.cache/npm",
        b"GIT_CONFIG_GLOBAL": GIT_CONFIG_FILE,
    }
    if given.uid == 0:
        # For uid 0 tar would restore owners that nobody inside can be
        kept[b"TAR_OPTIONS"] = b"--no-same-owner"
    return kept


def _kept_environ(environ: Iterable[tuple[bytes, bytes]], configured: tuple[str, ...]) -> dict[bytes, bytes]:
    """Return those of the caller's variables that a new environment has: the terminal's, and what the person names."""
    return {
        name: value
        for name, value in environ
        if (name in _OF_TERMINAL or _is_named(_text(name), configured))
        and is_allowed_variable(_text(name), configured)
        and b"\0" not in value
    }


def _fixed_environ(project: bytes) -> dict[bytes, bytes]:
    """Return the variables that a new environment always has; `project` is where its directory is seen."""
    packages = project + b"/.packages"
    return {
        b"HOME": project,
        b"PATH": ROOTFS_PATH + b":" + packages + b"/bin",
        b"PIP_TARGET": packages,
        b"PYTHONPATH": packages,
        b"PYTHONDONTWRITEBYTECODE": b"1",
        b"TMPDIR": b"/tmp",
        b"LANG": b"C.UTF-8",
    }


def _proxy_environ(extra: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what leads programs to the proxy; what the caller sets is stronger, but settings of git come together."""
    count = extra.pop(b"GIT_CONFIG_COUNT", b"0")
    variables = proxy_variables(
        PROXY_PORT,
        git_count=int(count) if count.isdigit() and len(count) < _MOST_DIGITS else 0,
        node_script=NODE_SCRIPT_PATH.decode("ascii"),
    )
    return {name.encode(): value.encode() for name, value in variables.items()}


def _reduce_path(path: bytes, mounts: tuple[MountOp, ...]) -> bytes:
    """Return the entries of PATH that are seen in the sandbox; a default where none is left."""
    entries = [entry for entry in path.split(b":") if _is_visible(entry, mounts)]
    return b":".join(dict.fromkeys(entries)) or DEFAULT_PATH


def _is_visible(path: bytes, mounts: tuple[MountOp, ...]) -> bool:
    # A relative entry would mean another directory in each working directory
    return path.startswith(b"/") and b"\0" not in path and is_shown(mounts, normalise(path))


def _checked_extra(extra: tuple[tuple[bytes, bytes], ...]) -> dict[bytes, bytes]:
    """Return the variables that a caller sets for one run.

    Raises:
        UsageError: one of them has no name, or never enters a sandbox.
    """
    for name, value in extra:
        if not is_variable_name(_text(name)) or b"\0" in value:
            raise UsageError(f"{show(name)!r} can't be a variable: its name must not have `=`, nor name or value NUL.")
        if is_refused_variable(_text(name)):
            raise UsageError(
                f"The variable {show(name)} never enters a sandbox.",
                remedy="If the command needs it, set it inside the command.",
            )
    return dict(extra)


def _is_named(name: str, configured: tuple[str, ...]) -> bool:
    return any(name == entry or (entry.endswith("*") and name.startswith(entry[:-1])) for entry in configured)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
