# SPDX-License-Identifier: Apache-2.0
"""Which hosts this machine's own package managers are configured for, found by asking them.

No host of a registry stands in this code: what nobody configured is the tool's own default, and the tool says it. The
tools run with the person's network but without their projects: in a bubblewrap of their own, read-only, where every
directory that a command may have written is empty. So neither a program, nor a link, nor a file of a project decides
what runs or what is answered. Of the caller's variables they get those by which a person configures them.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from hashlib import blake2b
from urllib.parse import urlsplit

from unspill.errors import PolicyError
from unspill.host.probe import run_apart
from unspill.network.resolve import system_resolver
from unspill.policy.hosts import bracketed, pack_address, parse_private, parse_reachable, why_forbidden
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from unspill.model.policy import Registry
    from unspill.network.resolve import Resolver

# Where the tools start: made by bwrap, so it is empty, and so is everything above it that they look for settings in
_EMPTY = b"/dev/shm"
_SHELL = b"/bin/sh"
_LONGEST_S = 20.0
_MISSING = 127
_MOST_BYTES = 4_000_000
_MOST_HOSTS = 16
_KEPT_S = 3600.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
# The page of this project is looked at for the hosts that an index has its files on: no index is without it
_COMMON_PROJECT = "pip"
_PIP_OPTIONS = tuple(
    b"--no-input --no-color --disable-pip-version-check --no-cache-dir --retries 0 --timeout 10 -vvv".split()
)
# The first of the names that is a program; only its standard output, and no more than is ever needed
_SCRIPT = (
    b'for p in $1; do command -v "$p" >/dev/null 2>&1 && break; p=; done; [ "$p" ] || exit %d; shift; '
    b'"$p" "$@" 2>/dev/null | head -c %d' % (_MISSING, _MOST_BYTES)
)
# cargo has no command that prints its settings. A lock file for one dependency makes it fetch what its index says of
# itself, into a home of its own; its settings are the person's. Parts are divided by NUL.
_CARGO_SCRIPT = (
    b"command -v cargo >/dev/null 2>&1 || exit %d; c=${CARGO_HOME:-$HOME/.cargo}; f=; for n in config.toml config; do "
    b'[ -f "$c/$n" ] && f=$c/$n && break; done; [ -z "$f" ] || head -c %d "$f"; '
    b"export CARGO_HOME=$PWD/home; mkdir -p home new/src && cd new && : >src/lib.rs && "
    b'printf \'[package]\\nname = "new"\\nversion = "0.0.0"\\nedition = "2021"\\n[dependencies]\\nlibc = "*"\\n\' '
    b'>Cargo.toml && cargo ${f:+--config "$f"} generate-lockfile >/dev/null 2>&1; '
    b'for d in ../home/registry/index/*/; do [ -f "$d/config.json" ] || continue; '
    b'd=${d%%/}; printf "\\0%%s\\0" "${d##*/}"; head -c %d "$d/config.json"; done'
    % (_MISSING, _MOST_BYTES, _MOST_BYTES)
)
_PASSED = frozenset(
    b"""
    HOME USER LOGNAME LANG LC_ALL PATH XDG_CONFIG_HOME XDG_CONFIG_DIRS
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS
    PIP_CONFIG_FILE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX PIP_TRUSTED_HOST PIP_CERT
    PIP_CLIENT_CERT PIP_PROXY
    NPM_CONFIG_REGISTRY NPM_CONFIG_USERCONFIG NPM_CONFIG_GLOBALCONFIG NPM_CONFIG_PREFIX NPM_CONFIG_CAFILE
    GOPROXY GOSUMDB GOENV GOROOT CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN PYENV_ROOT PYENV_VERSION NVM_DIR
    """.split()
)
_PASSED_BEGINNINGS = (b"CARGO_REGISTRIES_", b"CARGO_HTTP_", b"CARGO_NET_")
_OURS = {
    b"GOTOOLCHAIN": b"local",
    b"TMPDIR": _EMPTY,
    b"CARGO_NET_RETRY": b"0",
    b"CARGO_HTTP_TIMEOUT": b"10",
    b"NO_COLOR": b"1",
}


class Registries(Record):
    """What some package managers need: rules for the proxy, and variables that lead them there inside.

    A private rule is for what the person's own configuration names, which may be a mirror of their own network.
    `problems` says of which tool nothing could be found out, and why.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()
    variables: tuple[tuple[bytes, bytes], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Every host, each once."""
        return tuple(dict.fromkeys((*self.private_hosts, *self.hosts)))


class Configured(Record):
    """What one tool said: addresses that it is configured for, others that these lead to, and variables."""

    urls: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    problem: str = ""


class PackageManager(Record):
    """How one tool is asked: `words` for the script, which prints what `read` takes."""

    script: bytes
    words: tuple[bytes, ...]
    read: Callable[[str], Configured]


def find_registries(
    tools: Sequence[Registry],
    *,
    bwrap: bytes,
    hidden: Sequence[bytes],
    environ: Mapping[bytes, bytes],
    resolver: Resolver = system_resolver,
) -> Registries:
    """Ask tools, all at once, which hosts they are configured for.

    Args:
        tools: Which ones.
        bwrap: The program that keeps what commands write away from them.
        hidden: Directories that a command may have written.
        environ: The caller's own variables.
        resolver: Says whether an index is one of a private network.

    Raises:
        SandboxUnavailable: bwrap can't be started.
    """
    passed = {name: value for name, value in environ.items() if _is_passed(name)} | _OURS
    wanted = list(dict.fromkeys(tools))
    commands = [(_SHELL, b"-c", TOOLS[tool].script, b"sh", *TOOLS[tool].words) for tool in wanted]
    answers = run_apart(commands, bwrap=bwrap, hidden=hidden, environ=passed, cwd=_EMPTY, seconds=_LONGEST_S)
    found = Registries()
    for tool, answer in zip(wanted, answers, strict=True):
        found = _joined(found, tool, _understood(tool, answer), resolver)
    return found


def find_kept_registries(
    cache: bytes,
    tools: Sequence[Registry],
    *,
    bwrap: bytes,
    hidden: Sequence[bytes],
    environ: Mapping[bytes, bytes],
    afresh: bool,
) -> Registries:
    """Return what tools said within the last hour, as the file `cache` has it, or ask them; `afresh`: ask in any case.

    Raises:
        SandboxUnavailable: bwrap can't be started.
    """
    passed = sorted((name, value) for name, value in environ.items() if _is_passed(name))
    key = blake2b(repr((tuple(tools), sorted(hidden), passed)).encode(), digest_size=16).hexdigest()
    kept = None if afresh else _read_cache(cache, key)
    if kept is not None:
        return kept
    found = find_registries(tools, bwrap=bwrap, hidden=hidden, environ=environ)
    said = found.as_dict() | {"key": key, "at": time.time()}
    said["variables"] = [[part.decode() for part in pair] for pair in found.variables]
    new = b"%b.%d" % (cache, os.getpid())
    with open(new, "w", encoding="utf-8") as file:
        json.dump(said, file)
    os.replace(new, cache)
    return found


def _read_cache(cache: bytes, key: str) -> Registries | None:
    try:
        with open(cache, encoding="utf-8") as file:
            said = _table(file.read())
        if said["key"] != key or not 0 <= time.time() - said["at"] < _KEPT_S:
            return None
        lists = {name: tuple(said[name]) for name in ("hosts", "private_hosts", "problems")}
        return Registries(**lists, variables=tuple((n.encode(), v.encode()) for n, v in said["variables"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_passed(name: bytes) -> bool:
    return name.upper() in _PASSED or name.startswith(_PASSED_BEGINNINGS)


def _understood(tool: Registry, answer: bytes | int | None) -> Configured:
    """Return what a tool printed, as it is meant; its problem where there is nothing."""
    if isinstance(answer, bytes):
        return TOOLS[tool].read(answer.decode("utf-8", "replace"))
    if answer is None:
        return Configured(problem=f"{tool} did not answer within {_LONGEST_S:.0f} s")
    return Configured(problem=f"{tool} is not installed, or only inside the project")


def _joined(found: Registries, tool: str, configured: Configured, resolver: Resolver) -> Registries:
    problems = [*found.problems, *filter(None, (configured.problem,))]
    private, hosts = dict.fromkeys(found.private_hosts), dict.fromkeys(found.hosts)
    is_private = False
    for rule, problem in map(_rule_of, configured.urls[:_MOST_HOSTS]):
        private |= dict.fromkeys((rule,) if rule else ())
        problems += [f"{tool} is configured for {problem}"] * bool(problem)
        is_private = is_private or (bool(rule) and _is_on_private_network(rule, resolver))
    for rule, _problem in map(_rule_of, configured.linked[:_MOST_HOSTS]):
        # A page of a public index must not lead into the person's own network
        target = private if is_private else hosts
        target |= dict.fromkeys((rule,) if rule and (is_private or _is_reachable(rule)) else ())
    if not (configured.urls or configured.problem):
        problems.append(f"{tool} names no host that it is configured for")
    variables = dict(found.variables) | {n.encode(): v.encode() for n, v in configured.variables if v.isprintable()}
    return Registries(
        hosts=tuple(host for host in hosts if host not in private),
        private_hosts=tuple(private),
        variables=tuple(variables.items()),
        problems=tuple(problems),
    )


def _rule_of(url: str) -> tuple[str, str]:
    """Return the rule for the host of an address, and else what is wrong with it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return "", "something that is no address"
    if not host or not port:
        # A directory, or a protocol that has no proxy
        return "", ""
    try:
        return parse_private(f"{bracketed(host)}:{port}").text, ""
    except PolicyError as error:
        return "", f"a host that can't be reached ({error.message}). {error.remedy}"


def _is_reachable(rule: str) -> bool:
    try:
        return bool(parse_reachable(rule))
    except PolicyError:
        return False


def _is_on_private_network(rule: str, resolver: Resolver) -> bool:
    host = parse_private(rule).host
    try:
        answers = [host] if pack_address(host) else resolver(host)
    except (OSError, UnicodeError):
        return False
    return any(why_forbidden(pack_address(answer)) for answer in answers)


def _without_password(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def read_pip(said: str) -> Configured:
    """Read what pip says while it looks for a project: where it looks, and where it finds files."""
    lines = [line.strip() for line in said.splitlines()]
    places = [line.removeprefix("* ").split()[0] for line in lines if line.startswith("* ") and "://" in line]
    links = [line.removeprefix("Found link ").split()[0] for line in lines if line.startswith("Found link ")]
    end = f"/{_COMMON_PROJECT}/"
    indexes = [_without_password(place.removesuffix(end)) for place in places if place.endswith(end)]
    variables = {"PIP_INDEX_URL": indexes[0]} if indexes else {}
    if indexes[1:]:
        variables["PIP_EXTRA_INDEX_URL"] = " ".join(indexes[1:])
    plain = [urlsplit(place).netloc.rpartition("@")[2] for place in places if place.startswith("http://")]
    if plain:
        variables["PIP_TRUSTED_HOST"] = " ".join(dict.fromkeys(plain))
    return Configured(
        urls=tuple(dict.fromkeys(filter(_is_web, places))),
        linked=tuple(_origins(links)),
        variables=tuple(variables.items()),
    )


def read_npm(said: str) -> Configured:
    """Read npm's settings: the registry, and those of scopes."""
    settings = _table(said[said.find("{") :])
    registries = {key: url for key, url in settings.items() if isinstance(url, str) and key.endswith("registry")}
    default = registries.get("registry", "")
    urls = [url for key, url in registries.items() if key == "registry" or key.startswith("@")]
    variables = (("npm_config_registry", _without_password(default)),) if default else ()
    return Configured(urls=tuple(dict.fromkeys(filter(_is_web, urls))), variables=variables)


def read_go(said: str) -> Configured:
    """Read GOPROXY and GOSUMDB, each on its line."""
    proxy, _, sums = said.strip().partition("\n")
    proxies = [part.strip() for part in proxy.replace("|", ",").split(",")]
    urls = list(filter(_is_web, proxies))
    name, _, url = sums.strip().partition(" ")
    if name and name != "off" and urls:
        urls.append(url.strip() or f"https://{name.partition('+')[0]}")
    if not urls and "direct" in proxies:
        return Configured(problem="go fetches each module from its own host (GOPROXY=direct): name these hosts")
    safe = ",".join(_without_password(part) if _is_web(part) else part for part in proxies)
    return Configured(urls=tuple(urls), variables=(("GOPROXY", safe), ("GOSUMDB", sums.strip())))


def read_apt(said: str) -> Configured:
    """Read the addresses of apt's sources, one on each line."""
    return Configured(urls=tuple(_origins(said.split())))


def read_cargo(said: str) -> Configured:
    """Read cargo's settings, and what each index that it then asked says of where its packages are."""
    text, *parts = said.split("\0")
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return Configured(problem="cargo's config.toml can't be read")
    sources, registries = _tables(settings.get("source")), _tables(settings.get("registries"))
    name = "crates-io"
    for _ in range(len(sources)):
        name = sources.get(name, {}).get("replace-with", name)
    chosen = sources.get(name, registries.get(name, {}))
    urls = [str(chosen.get("registry", chosen.get("index", "")))]
    urls += [str(registry.get("index", "")) for registry in registries.values()]
    indexes = {url.removeprefix("sparse+") for url in urls if url}
    linked = [str(_table(part).get("dl", "")) for part in parts[1::2]]
    if not urls[0]:
        # The directory of an index is called by its host, and a number
        indexes |= {f"https://{directory.rpartition('-')[0]}/" for directory in parts[::2]}
    if not indexes:
        return Configured(problem="cargo did not reach its registry, so it does not say which hosts it uses")
    return Configured(urls=tuple(sorted(filter(_is_web, indexes))), linked=tuple(_origins(linked)))


def _origins(urls: Iterable[str]) -> Iterator[str]:
    """Yield scheme and host of addresses of the web, each once."""
    seen = dict.fromkeys("/".join(url.split("/", 3)[:3]) for url in urls if _is_web(url))
    yield from seen


def _table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _tables(value: object) -> dict[str, dict[str, Any]]:
    return {key: table for key, table in value.items() if isinstance(table, dict)} if isinstance(value, dict) else {}


TOOLS: dict[Registry, PackageManager] = {
    "pip": PackageManager(
        script=_SCRIPT,
        words=(b"pip pip3", *_PIP_OPTIONS, b"index", b"versions", _COMMON_PROJECT.encode()),
        read=read_pip,
    ),
    "npm": PackageManager(script=_SCRIPT, words=(b"npm", b"config", b"list", b"--json"), read=read_npm),
    "cargo": PackageManager(script=_CARGO_SCRIPT, words=(), read=read_cargo),
    "go": PackageManager(script=_SCRIPT, words=(b"go", b"env", b"GOPROXY", b"GOSUMDB"), read=read_go),
    "apt": PackageManager(script=_SCRIPT, words=(b"apt-get", b"indextargets", b"--format", b"$(SITE)"), read=read_apt),
}
