# SPDX-License-Identifier: Apache-2.0
"""Odd forms of hosts, by what they try: none of them may reach a resolver or a connection.

Most are loopback, a metadata service or a private neighbour for somebody: a resolver, a browser or a proxy.
"""

from typing import Final

FAMILIES: Final[dict[str, tuple[bytes, ...]]] = {
    "an embedded NUL ends the name for a resolver": (
        b"localhost\x00.example.org", b"127.0.0.1\x00.example.org", b"169.254.169.254\x00.example.org",
        b"evil.org\x00.example.org", b"\x00example.org", b"example.org\x00", b"example.org\x00.",
        b"example\x00.org", b"localhost\x00", b"::1\x00.example.org", b"10.0.0.1\x00example.org",
        b"evil.org\x00@example.org",
    ),
    "percent signs are decoded by some": (
        b"localhost%00.example.org", b"127.0.0.1%00.example.org", b"127%2e0%2e0%2e1", b"%31%32%37.0.0.1",
        b"example%2eorg", b"example.org%00", b"example.org%0d%0a", b"%6c%6f%63%61%6c%68%6f%73%74",
        b"example.org%20", b"example.org%23", b"example.org%2f@evil.org", b"%00example.org",
    ),
    "other numbers that mean loopback": (
        b"0x7f.1", b"0x7f.0.0.1", b"0x7f000001", b"0X7F000001", b"0x7f.0x0.0x0.0x1", b"2130706433",
        b"017700000001", b"0177.0.0.1", b"0177.1", b"127.1", b"127.0.1", b"127.000.000.001", b"0127.0.0.1",
        b"127.0.0.01", b"127.0x0.0.1", b"0", b"0.0", b"0x0", b"00.0.0.0", b"1", b"127", b"127.65535",
        b"127.0.65535", b"0x7f.0.1", b"4294967295", b"0000000000000000000000000000000000177.0.0.1",
        b"0x00000000000000007f000001", b"127.0.0.0x1", b"2130706433.",
    ),
    "other numbers that mean a metadata service": (
        b"2852039166", b"0xa9fea9fe", b"0251.0376.0251.0376", b"0xa9.0xfe.0xa9.0xfe", b"169.254.43518",
        b"169.16689662", b"0251.254.169.254", b"169.254.0251.254", b"0xa9fe.0xa9fe", b"025177524776",
        b"1684301000", b"0x64646464", b"168.63.33040", b"0xa83f8110", b"2822734096",
    ),
    "other numbers that mean a private neighbour": (
        b"0xa.0.0.1", b"012.0.0.1", b"167772161", b"10.1", b"0xc0a80101", b"3232235777", b"0300.0250.1.1",
        b"192.168.257", b"0xac.0x10.0.1", b"0254.020.0.1", b"2886729729", b"100.64.1", b"0144.0100.0.1",
    ),
    "numbers with a dot too many or too few": (
        b"127.0.0.1.", b"127.0.0.1..", b".127.0.0.1", b"127..0.1", b"127.0.0.", b"127.0.0.1.1", b"0.0.0.0.",
        b"256.0.0.1", b"127.0.0.256", b"-127.0.0.1", b"+127.0.0.1", b"127.0.0.1e0", b"1e2.0.0.1", b"127.0.0.-1",
    ),
    "a last label that is a number": (
        b"example.1", b"example.0x1", b"example.0x7f", b"www.example.123", b"example.0", b"a.b.c.d.1",
        b"localhost.1", b"example.org.5", b"example.0x", b"example.00", b"foo.0xa9fea9fe", b"example.1e5",
    ),
    "full-width, ideographic and half-width dots": (
        "127\u30020\u30020\u30021".encode(), "127\uff0e0\uff0e0\uff0e1".encode(),
        "127\uff610\uff610\uff611".encode(), "example\u3002org".encode(), "example\uff0eorg".encode(),
        "localhost\u3002".encode(), "evil\u3002example.org".encode(), "169\u3002254\u3002169\u3002254".encode(),
        "10\uff610\uff610\uff611".encode(),
    ),
    "circled, full-width and other digits": (
        "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460".encode(),
        "\u2460\u2465\u2468.\u2461\u2464\u2463.\u2460\u2465\u2468.\u2461\u2464\u2463".encode(),
        "\uff11\uff12\uff17.\uff10.\uff10.\uff11".encode(), "\xb2130706433".encode(),
        "\U0001d7cf\U0001d7d0\U0001d7d5.\U0001d7ce.\U0001d7ce.\U0001d7cf".encode(),
        "\u0661\u0662\u0667.\u0660.\u0660.\u0661".encode(), "\u0967\u0968\u096d.\u0966.\u0966.\u0967".encode(),
        "\u2469.0.0.1".encode(), "0\u21797f.1".encode(), "\U0001d7d927.0.0.1".encode(),
    ),
    "letters that fold to others": (
        "\uff45xample.org".encode(), "\u24d4xample.org".encode(), "exam\xadple.org".encode(),
        "exam\u200bple.org".encode(), "example.org\u200b".encode(), "\u0435xample.org".encode(),
        "example\u017f.org".encode(), "\u2113ocalhost".encode(), "loc\u0430lhost".encode(),
        "example.\u212aom".encode(), "exampl\u0435.org".encode(), "\u202eexample.org".encode(),
        "exa\u2060mple.org".encode(), b"\xc0\xaeexample.org", b"\xffexample.org", b"ex\xe4mple.org",
        "fa\xdf.de".encode(), "b\xfccher.example".encode(),
    ),
    "somebody before an at sign": (
        b"example.org@evil.org", b"user@example.org", b"user:pass@example.org", b"example.org:80@evil.org",
        b"@example.org", b"example.org@127.0.0.1", b"example.org@", b"a@b@example.org", b"127.0.0.1@example.org",
        b"example.org%40evil.org",
    ),
    "zones of addresses": (
        b"[fe80::1%25eth0]", b"[fe80::1%eth0]", b"fe80::1%eth0", b"[::1%lo]", b"[::1%251]", b"::1%1", b"[::1%]",
        b"127.0.0.1%lo", b"[fe80::1%25]", b"[ff02::1%eth0]",
    ),
    "addresses of version 6 where a name stands": (
        b"::1", b"::", b"::ffff:127.0.0.1", b"0:0:0:0:0:0:0:1", b"fe80::1", b"fd00:ec2::254",
        b"64:ff9b::a9fe:a9fe", b"2002:7f00:1::", b"[::1", b"::1]", b"[[::1]]", b"[::1]]", b"[]", b"[", b"]",
        b"[:::1]", b"[::1::]", b"[12345::1]", b"[::g]", b"[::1].", b"[::1]example.org", b"example.org[::1]",
        b"[example.org]", b"[127.0.0.1]", b"[0x7f000001]", b"[v1.fe80::1]", b"[ ::1]", b"[::1 ]",
        b"[::ffff:0x7f000001]", b"[::ffff:127.1]", b"[::ffff:0177.0.0.1]",
    ),
    "numbers in an address of version 6 that are too many, too few or too long": (
        b"[::00001]", b"[::ffff:127.0.0.01]", b"[::ffff:127.0.0.1.]", b"[::ffff:127.0.0.256]", b"[127.0.0.1::]",
        b"[::127.0.0.1:0]", b"[0:0:0:0:0:0:0:0:1]", b"[0:0:0:0:0:0:1]", b"[1::2::3]", b"[1:2:3:4::5:6:7:8]",
        b"[1:2:3:4:5:6:7:127.0.0.1]", b"[:1]", b"[1:]", b"[::1%lo%lo]", b"[::+1]", b"[::0x1]", b"[::1_0]",
    ),
    "bytes that are an address already": (
        b"\x7f\x00\x00\x01", b"\x0a\x00\x00\x01", b"\xa9\xfe\xa9\xfe", b"\x7f\x01\x01\x01", bytes(4), bytes(16),
        bytes(15) + b"\x01", bytes(10) + b"\xff\xff\x7f\x00\x00\x01", b"\xfd\x00\x0e\xc2" + bytes(10) + b"\x02\x54",
        b"1234", b"abcdefghijklmnop", b"[\x7f\x00\x00\x01]", b"[" + bytes(15) + b"\x01]",
    ),
    "what Python's int() reads as a number": (
        b"1_0.0.0.1", b"1_27.0.0.1", b" 127.0.0.1", b"127.0.0.1 ", b"127. 0.0.1", b"127.0.0.1\n", b"127.0.0.1\t",
        b"\xb9\xb2\xb7.0.0.1", "\xb9\xb2\xb7.0.0.1".encode(), b"127.0.0.+1", b"127.0.0.1\x0b",
        b"0b1.0.0.1", b"0o177.0.0.1",
    ),
    "a network instead of an address": (
        b"127.0.0.1/32", b"127.0.0.0/8", b"127.0.0.1/255.0.0.0", b"[::1/128]", b"[::1]/128", b"0.0.0.0/0", b"[::/0]",
    ),
    "characters that end a host for somebody": (
        b"example.org/", b"example.org/.evil.org", b"evil.org#.example.org", b"evil.org?.example.org",
        b"evil.org\\.example.org", b"example.org\\@evil.org", b"evil.org;.example.org", b"evil.org,example.org",
        b"example.org:80:80", b"example.org:", b":80", b"evil.org .example.org", b"example.org evil.org",
        b"evil.org\t.example.org", b"evil.org\n.example.org", b"evil.org\r\n.example.org",
        b"evil.org\x0b.example.org", b"evil.org\x7f.example.org", b'"example.org"', b"'example.org'",
        b"<example.org>", b"{example.org}", b"example.org|", b"example.org^", b"example.org`id`",
        b"$(id).example.org", b"example!.org", b"*.example.org", b"*", b"example.*", b"ex_ample.org",
        b"_http.example.org", b"example.org=", b"example.org&", b"~.example.org",
    ),
    "dots and hyphens in wrong places": (
        b"", b".", b"..", b"...", b".example.org", b"example..org", b"example.org..", b"-example.org",
        b"example-.org", b"example.-org", b"example.org-", b"-", b"-.-", b"--.org", b"example.org.-", b"xn--.org",
        b"example.xn--",
    ),
    "too long": (
        b"a" * 64 + b".org", b"a" * 254, b".".join([b"a" * 63] * 4) + b".org", b"a." * 127 + b"org",
        b"a." * 5000 + b"org", b"a" * 255 + b".org", b"example." + b"o" * 64,
    ),
    "a single label, or one that is answered here": (
        b"localhost", b"LOCALHOST", b"localhost.", b"metadata", b"example", b"org", b"com", b"router",
        b"foo.localhost", b"localhost.localdomain", b"metadata.google.internal", b"instance-data.ec2.internal",
        b"printer.local", b"nas.lan", b"host.docker.internal", b"gateway.docker.internal",
        b"kubernetes.default.svc.cluster.local", b"1.0.0.127.in-addr.arpa", b"ipv4only.arpa", b"router.home.arpa",
        b"hidden.onion", b"a.invalid", b"db.corp", b"nas.home", b"wpad.intranet", b"x.private", b"ip6-localhost",
        b"broadcasthost",
    ),
}  # fmt: skip

VECTORS: Final = [host for family in FAMILIES.values() for host in family]


def asking(host: bytes) -> list[bytes]:
    """Return what asks for a host in every language that the proxy speaks."""
    asked = [
        b"CONNECT %s:443 HTTP/1.1\r\n\r\n" % host,
        b"CONNECT %s HTTP/1.1\r\n\r\n" % host,
        b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(host[:255]),)) + host[:255] + b"\x01\xbb",
    ]
    if b"/" in host or b"?" in host:
        return asked  # what follows them is not of the host, and what precedes them may well be one
    absolute = b"GET http://%s:8080/ HTTP/1.1\r\nHost: %s:8080\r\n\r\n" % (host, host)
    return [*asked, absolute, b"GET http://%s/ HTTP/1.1\r\n\r\n" % host]
