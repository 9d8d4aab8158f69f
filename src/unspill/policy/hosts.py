# SPDX-License-Identifier: Apache-2.0
"""Which hosts a sandbox may reach: the grammar of names and addresses, the rules, and why something is refused.

A rule is an exact host, the subdomains of one, or any public host; an empty list allows nothing. Names are compared
label by label, so a suffix without its dot never matches. A private rule is for a server of the person's own network:
its host may have a local name and a private address, never one of this machine or of a metadata service.

The grammar comes before anything else is done with a name: letters, digits, hyphens and dots, or a literal address.
Resolvers read more than names: an embedded NUL ends the name for getaddrinfo, full-width and circled digits become
digits, `0x7f.1`, `017700000001` and `2130706433` are addresses.

Which addresses are public is our own table, decided on packed bytes. Python's `is_global` calls NAT64,
IPv4-compatible, multicast and a cloud's metadata address global, and its answer depends on the version of Python. Of
IPv6 only 2000::/3 is ever public, so an unknown form is refused.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv6Address

from unspill.errors import PolicyError
from unspill.policy.paths import shell_word
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.run import DenialRule


WEB_PORTS = (80, 443)
_NAME_BYTES = 253
_LABEL_BYTES = 63
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_LDH = _LETTERS + _DIGITS + b"-"

# Never delegated in the public name space: what answers for them is this machine or its neighbours.
SPECIAL = frozenset(
    "alt arpa corp home internal intranet invalid lan local localdomain localhost onion private".split()
)
# Nobody's server has such a name, or it is this machine
_NOWHERE = frozenset("alt arpa invalid localdomain localhost onion".split())
# What a private rule may lead to; everything else that is not public stays out of reach
_PRIVATE = frozenset(("private", "shared by carriers", "documentation", "benchmarking"))
_OF_HOSTS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.:[]_*")

_FORMS = "Write `example.org`, `*.example.org` or `example.org:8443`."
_ENCODED = "Write international names in their encoded form, with labels that begin with `xn--`."
_PUBLIC = (
    "Name a public host. `private_hosts` under `[network]` in your configuration is for servers of your own network."
)
_NEVER = "`--expose PORT` is for a port of this machine. No setting allows metadata services and special addresses."

_V4 = """
0.0.0.0/8         this network
10.0.0.0/8        private
100.100.100.200/32 metadata service
100.64.0.0/10     shared by carriers
127.0.0.0/8       loopback
168.63.129.16/32  metadata service
169.254.0.0/16    link-local, metadata service
172.16.0.0/12     private
192.0.0.192/32    metadata service
192.0.0.0/24      protocol assignments
192.0.2.0/24      documentation
192.31.196.0/24   special purpose
192.52.193.0/24   special purpose
192.80.8.124/32   metadata service
192.88.99.0/24    6to4 relay
192.168.0.0/16    private
192.175.48.0/24   special purpose
198.18.0.0/15     benchmarking
198.51.100.0/24   documentation
203.0.113.0/24    documentation
224.0.0.0/4       multicast
240.0.0.0/4       reserved, broadcast
"""

_V6 = """
::/128            unspecified
::1/128           loopback
::ffff:0:0/96     IPv4-mapped
::ffff:0:0:0/96   IPv4-translated
::/96             IPv4-compatible
64:ff9b::/96      NAT64
64:ff9b:1::/48    NAT64
100::/64          discard
2001::/32         Teredo
2001:2::/48       benchmarking
2001:10::/28      ORCHID
2001:20::/28      ORCHID
2001::/23         protocol assignments
2001:db8::/32     documentation
2002::/16         6to4
2620:4f:8000::/48 special purpose
3ffe::/16         6bone, given back
3fff::/20         documentation
5f00::/16         segment routing
fd00:c1::/32      metadata service
fd00:ec2::/32     metadata service
fd20:ce::/32      metadata service
fc00::/7          private
fe80::/10         link-local
fec0::/10         site-local
ff00::/8          multicast
"""

# Python also reads zones, and may read more in another version
_CHARACTERS = frozenset("0123456789abcdefABCDEF.:")
_MAPPED, _COMPATIBLE = bytes(10) + b"\xff\xff", bytes(12)
# An interface identifier of ISATAP carries an IPv4 address, to which a host with such a tunnel would send.
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")

# Names below which anybody can have a host, so that no star may stand there. Not the whole public suffix list, which is
# larger than unspill and changes every week: every single label, the registries' second levels under the countries,
# and the common hosting domains. Exact hosts below them can be allowed.
# Of the second levels, nearly every country that has them has a registry there.
_SECOND_LEVELS = frozenset(
    """
    ac asn biz co com ed edu firm gen go gob gouv gov govt gv ind info int lg ltd mil mod muni name ne net nhs
    nic nom or org plc police pro res sch school tm
    """.split()
)

_HOSTING = frozenset(
    """
    akamai.net akamaihd.net akamaized.net amplifyapp.com appspot.com azureedge.net azurefd.net azurewebsites.net
    b-cdn.net backblazeb2.com bitbucket.io blogspot.com br.com cdn77.org cloudapp.net cloudflare.net
    cloudflarestorage.com cloudfront.net cloudfunctions.net cn.com codeberg.page codesandbox.io csb.app ddns.net
    ddnss.de dedyn.io deno.dev deno.net devtunnels.ms digitaloceanspaces.com duckdns.org dyndns.org dynv6.net
    edgekey.net edgesuite.net elasticbeanstalk.com eu.com eu.org fastly.net fastlylb.net firebaseapp.com
    firebaseio.com fly.dev freeddns.org gb.net ghost.io gitbook.io github.dev github.io githubpreview.dev
    gitlab.io gitpod.io glitch.me global.ssl.fastly.net googleusercontent.com gr.com hashnode.dev herokuapp.com
    hf.space hopto.org hu.net in.net jp.net jpn.com koyeb.app kr.com la.net lhr.life linodeobjects.com loca.lt
    localhost.run localtest.me lvh.me mex.com myfritz.net myshopify.com netlify.app netlify.com ngrok-free.app
    ngrok-free.dev ngrok.app ngrok.dev ngrok.io nip.io no-ip.org noip.me now.sh oastify.com onrender.com ovh.net
    pagekite.me pages.dev pipedream.net pythonanywhere.com qc.com r2.dev railway.app readthedocs.io repl.co
    replit.app replit.dev requestcatcher.com ru.com run.app sa.com se.net serveo.net serveousercontent.com
    sourceforge.io sslip.io streamlit.app surge.sh sytes.net traefik.me trafficmanager.net trycloudflare.com
    uk.com uk.net up.railway.app us.com vercel.app vercel.dev web.app webflow.io webhook.site weebly.com
    wixsite.com wordpress.com workers.dev xip.io za.com zapto.org zeabur.app
    """.split()
)

# Providers whose customers have names at any depth below these
_DEEP = ("amazonaws.com", "amazonaws.com.cn", "azure.com", "on.aws", "windows.net")


class Refused(Exception):
    """A destination or a request that the rules do not allow: the proxy makes a Denial of it, a setting a PolicyError.

    `because` is one clause for people; it never quotes what the command sent. `is_private`: a private rule for the host
    would allow it.
    """

    def __init__(self, rule: DenialRule, because: str, *, is_private: bool = False) -> None:
        super().__init__(because)
        self.rule = rule
        self.because = because
        self.is_private = is_private

    def remedy(self, host: str, port: int) -> str:
        """Return what would allow it, after the reason where that is not said apart."""
        reason = f"{self.because[:1].upper()}{self.because[1:]}."
        if self.is_private:
            return f"{reason} If it is a server of your own network, list it in `private_hosts` under `[network]`."
        match self.rule:
            case "form":
                return f"{reason} Use a host name of letters, digits and hyphens."
            case "host":
                return _allowing(_named(host, port))
            case "port":
                return f"{_allowing(f'{bracketed(host)}:{port}')} Without a port, a host means 80 and 443."
            case "address":
                return f"{reason} Use a host with a public address."
            case "server name":
                return f"{reason} Let TLS ask for `{host}` itself."
            case "request":
                return f"{reason} Send one plain request to the host that was asked for."
            case "budget":
                return f"{reason} Raise it under `[network]` in the configuration."


class Destination(Record):
    """Where a connection shall go: a checked name, or a literal address, then with its packed bytes."""

    host: str
    port: int
    address: bytes = b""

    @property
    def authority(self) -> str:
        """Return it as it stands in a Host field."""
        host = bracketed(self.host)
        return host if self.port == 80 else f"{host}:{self.port}"


def parse_host(raw: bytes, *, local: Sequence[AllowedHost] | None = ()) -> str:
    """Return a host name in lower case, without its trailing dot.

    Names that only a private network has are taken if a rule in `local` covers them, or all of them with None.

    Raises:
        Refused: It is no host name, or not a full name of the public name space.
    """
    name = raw.lower()
    name = name[:-1] if name.endswith(b".") else name
    labels = name.split(b".")
    if not 1 <= len(name) <= _NAME_BYTES:
        raise Refused("form", "a name has 1 to 253 characters")
    if not all(_is_label(label) for label in labels):
        raise Refused("form", "a label has 1 to 63 letters, digits and inner hyphens")
    text = name.decode("ascii")
    why = why_local(text)
    # Numbers in any base that a resolver reads as an address begin with a digit
    is_possible = labels[-1][:1] in _LETTERS and text.rpartition(".")[2] not in _NOWHERE
    is_named = local is None or any(rule.covers_host(text) for rule in local)
    if why and not (is_possible and is_named):
        raise Refused("form", why, is_private=is_possible)
    return text


def why_local(name: str) -> str:
    """Return why a host name is none of the public name space, the empty text if it is one."""
    *others, last = name.split(".")
    if not others:
        return "a single label is not a public name"
    if last.encode().translate(None, _LETTERS) and not last.startswith("xn--"):
        return "the last label must not have digits"
    return "the last label is not a public domain" if last in SPECIAL else ""


def parse_port(raw: bytes) -> int:
    """Return a port number.

    Raises:
        Refused: It is not 1 to 65535 in plain decimal.
    """
    if not 1 <= len(raw) <= 5 or raw.translate(None, _DIGITS) or raw[:1] == b"0" or int(raw) > 65535:
        raise Refused("form", "a port is a number from 1 to 65535")
    return int(raw)


def literal_destination(packed: bytes, port: int) -> Destination:
    """Return the destination of a packed address."""
    return Destination(host=address_text(packed), port=port, address=packed)


def parse_authority(raw: bytes, *, port: int | None = None, local: Sequence[AllowedHost] = ()) -> Destination:
    """Return the destination of `host:port`, or of `host` where there is a default port; `local` is for `parse_host`.

    Raises:
        Refused: The host or the port is malformed, or the port is missing.
    """
    host, colon, number = raw, b"", b""
    if raw[-1:] != b"]":
        host, colon, number = raw.rpartition(b":")
        if not colon:
            host = raw
    if not colon and port is None:
        raise Refused("form", "the port is missing")
    at = parse_port(number) if colon else port
    assert at is not None
    packed = find_literal(host)
    return literal_destination(packed, at) if packed else Destination(host=parse_host(host, local=local), port=at)


class AllowedHost(Record):
    """One rule: a host, or with `subdomains` every name below it but not itself; the web ports, or the one named."""

    host: str
    subdomains: bool = False
    port: int | None = None

    def covers_host(self, host: str) -> bool:
        """Tell whether the rule is about this host, whatever the port."""
        if not self.subdomains:
            return host == self.host
        own, theirs = self.host.split("."), host.split(".")
        return len(theirs) > len(own) and theirs[-len(own) :] == own

    def covers_port(self, port: int) -> bool:
        """Tell whether the rule is about this port."""
        return port in WEB_PORTS if self.port is None else port == self.port

    def covers(self, other: AllowedHost) -> bool:
        """Tell whether all that another rule allows is allowed by this one."""
        if other.subdomains and not self.subdomains:
            return False
        is_same = (other.host, other.subdomains) == (self.host, self.subdomains)
        ports = WEB_PORTS if other.port is None else (other.port,)
        return (is_same or self.covers_host(other.host)) and all(map(self.covers_port, ports))

    @property
    def text(self) -> str:
        """The rule in the one form that it is compared by."""
        host = bracketed(self.host)
        return f"{'*.' * self.subdomains}{host}{'' if self.port is None else f':{self.port}'}"


def parse_allowed(text: str, *, is_local: bool = False) -> AllowedHost:
    """Return the rule of `example.org`, `*.example.org`, `203.0.113.7` or `[2001:db8::1]`, with `:port` or without.

    With `is_local` it may also be a name that only a private network has.

    Raises:
        PolicyError: It is none of these, or its star stands for everybody's names.
    """
    local = None if is_local else ()
    try:
        host, port = _split_port(_without_others(text.encode("ascii")))
        if packed := find_literal(host):
            return AllowedHost(host=address_text(packed), port=port)
        if not host.startswith(b"*."):
            return AllowedHost(host=parse_host(host, local=local), port=port)
        suffix = parse_host(host[2:], local=local)
    except UnicodeEncodeError:
        raise PolicyError(f"not a host that can be allowed: {text!a}", remedy=_ENCODED) from None
    except Refused as error:
        raise PolicyError(f"not a host that can be allowed: {text!a} ({error.because})", remedy=_FORMS) from None
    if is_public_suffix(suffix):
        raise PolicyError(f"a star below {suffix} would allow other people's hosts: {text!a}", remedy=_FORMS)
    return AllowedHost(host=suffix, subdomains=True, port=port)


def parse_reachable(text: str) -> AllowedHost:
    """Return the rule of a text, if there is anything that it could allow.

    Raises:
        PolicyError: It is none, or an address to which nothing is ever sent.
    """
    rule = parse_allowed(text)
    packed = pack_address(rule.host)
    why = why_forbidden(packed) if packed else ""
    if why:
        how, remedy = ("can't", _PUBLIC) if why in _PRIVATE else ("can never", _NEVER)
        raise PolicyError(f"the address {rule.text} {how} be allowed: it is not public ({why})", remedy=remedy)
    return rule


def parse_private(text: str) -> AllowedHost:
    """Return the rule of a host that may be on the person's own network.

    Raises:
        PolicyError: It is none, or an address to which nothing is ever sent.
    """
    rule = parse_allowed(text, is_local=True)
    packed = pack_address(rule.host)
    why = why_forbidden(packed) if packed else ""
    if why and why not in _PRIVATE:
        raise PolicyError(f"the address {rule.text} can never be allowed ({why})", remedy=_NEVER)
    return rule


class HostRules(Record):
    """All rules of one sandbox.

    `public` is for a granted network: any public host, literal addresses too, on `public_ports`. `any_server_name`
    gives up the check of what TLS asks for. What `private` covers is allowed too, and may be of a private network.
    """

    allowed: tuple[AllowedHost, ...] = ()
    private: tuple[AllowedHost, ...] = ()
    public: bool = False
    public_ports: tuple[int, ...] = WEB_PORTS
    any_server_name: bool = False

    def judge(self, destination: Destination) -> None:
        """Return if the destination is allowed by name and port; its address is another question.

        Raises:
            Refused: No rule covers it.
        """
        about = [rule for rule in (*self.private, *self.allowed) if rule.covers_host(destination.host)]
        if any(rule.covers_port(destination.port) for rule in about):
            return
        if self.public and destination.port in self.public_ports:
            return
        if about or self.public:
            raise Refused("port", "the host is allowed on other ports")
        raise Refused("host", "no rule covers it")


def covered(wanted: Iterable[str], allowed: Iterable[str]) -> bool:
    """Tell whether each of the wanted hosts is allowed by one of the others.

    Raises:
        PolicyError: One of them is not a rule.
    """
    rules = tuple(parse_allowed(text, is_local=True) for text in allowed)
    return all(any(rule.covers(parse_allowed(text, is_local=True)) for rule in rules) for text in wanted)


def parse_rules(texts: Iterable[str], *, public: bool = False, private: Iterable[str] = ()) -> HostRules:
    """Return the rules of a list of hosts, and of one of private ones.

    Raises:
        PolicyError: One of them is not a rule.
    """
    return HostRules(
        allowed=tuple(map(parse_allowed, texts)), public=public, private=tuple(map(parse_private, private))
    )


def _allowing(rule: str) -> str:
    # A host that could be allowed is nothing but such signs; anything else may be a stranger's words
    word = rule if _OF_HOSTS.issuperset(rule) else shell_word(rule.encode("utf-8", "surrogateescape"))
    return f"Run it with `--allow-host {word}`, or add `{rule}` to `hosts` under `[network]` in the configuration."


def _named(host: str, port: int) -> str:
    return bracketed(host) if port in (80, 443) else f"{bracketed(host)}:{port}"


def _is_label(label: bytes) -> bool:
    return (
        1 <= len(label) <= _LABEL_BYTES
        and not label.translate(None, _LDH)
        and label[:1] != b"-"
        and label[-1:] != b"-"
        and label != b"xn--"
    )


def _without_others(raw: bytes) -> bytes:
    """Return what may be a host, and say so where something else was copied along with it."""
    if b"/" in raw:
        raise Refused("form", "a host has no scheme and no path")
    if b"[" not in raw and find_literal(b"[%b]" % raw):
        raise Refused("form", "an IPv6 address needs brackets, as in `[2a00::1]`")
    return raw


def _split_port(raw: bytes) -> tuple[bytes, int | None]:
    if raw.endswith(b"]") or b":" not in raw:
        return raw, None
    host, _, number = raw.rpartition(b":")
    return host, parse_port(number)


def pack_address(text: str) -> bytes:
    """Return the packed bytes of an IPv4 or IPv6 address, nothing if it is neither.

    IPv4 is four plain decimal numbers: `127.1`, `0x7f.1` and `0177.0.0.1` are no addresses. IPv6 has no zone.
    """
    if not _CHARACTERS.issuperset(text):
        return b""
    try:
        return (IPv6Address if ":" in text else IPv4Address)(text).packed
    except AddressValueError:
        return b""


def find_literal(raw: bytes) -> bytes:
    """Return the packed bytes of a literal IPv4 or bracketed IPv6 address, nothing if it is neither."""
    is_bracketed = raw[:1] == b"[" and raw[-1:] == b"]"
    if is_bracketed != (b":" in raw):
        return b""
    # As text: Python takes bytes for an address that is packed already, so `a.de` would be 97.46.100.101
    return pack_address((raw[1:-1] if is_bracketed else raw).decode("latin-1"))


def address_text(packed: bytes) -> str:
    """Return a packed address in its canonical form."""
    if len(packed) == 4:
        return str(IPv4Address(packed))
    # Python writes the IPv4 address in these by its version, or never
    if packed[:12] == _MAPPED:
        return f"::ffff:{IPv4Address(packed[12:])}"
    if packed[:12] == _COMPATIBLE and any(packed[12:14]):
        return f"::{IPv4Address(packed[12:])}"
    return str(IPv6Address(packed))


def bracketed(host: str) -> str:
    """Return a name or an address as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _table(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return prefix, shift and reason of each line: an address is in it if it is the prefix once shifted."""
    rows = []
    for line in text.strip().splitlines():
        network, why = line.split(maxsplit=1)
        prefix, _, bits = network.partition("/")
        packed = pack_address(prefix)
        shift = len(packed) * 8 - int(bits)
        rows.append((int.from_bytes(packed) >> shift, shift, why))
    return tuple(rows)


_TABLES = {4: _table(_V4), 16: _table(_V6)}


def why_forbidden(packed: bytes, own: Iterable[bytes] = ()) -> str:
    """Return why nothing may be sent to an address, the empty text if it is public.

    Args:
        packed: 4 or 16 bytes.
        own: Packed addresses of this machine: public ones lead to its own services all the same.
    """
    if len(packed) not in _TABLES:
        return "not an address"
    if packed in own:
        return "the host's own"
    number = int.from_bytes(packed)
    for prefix, shift, why in _TABLES[len(packed)]:
        if number >> shift == prefix:
            return why
    if len(packed) == 16:
        return _why_not_global_unicast(packed)
    return ""


def is_private_use(why: str) -> bool:
    """Tell whether a private rule allows an address to which nothing may be sent for this reason."""
    return why in _PRIVATE


def _why_not_global_unicast(packed: bytes) -> str:
    if packed[0] >> 5 != 0b001:
        return "not global unicast"
    if packed[8:12] in _ISATAP:
        return "ISATAP"
    return ""


def is_public_suffix(name: str) -> bool:
    """Tell whether anybody can have a name below this one, which is in lower case and without a trailing dot."""
    labels = name.split(".")
    if len(labels) < 2:
        return True
    if len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVELS:
        return True
    return name in _HOSTING or any(name == deep or name.endswith(f".{deep}") for deep in _DEEP)
