# SPDX-License-Identifier: Apache-2.0
"""First messages of TLS clients: real ones of this machine's library, and written ones with any extension."""

import ssl


def real_hello(name: str | None, *, newest: bool = True) -> bytes:
    """Return what a real client sends first, one record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a client waits for its server")


def vector(content: bytes, size: int) -> bytes:
    return len(content).to_bytes(size) + content


def server_name(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    """Return the extension that asks for names."""
    return 0, vector(b"".join(bytes((kind,)) + vector(name, 2) for name in names), 2)


def written_hello(*extensions: tuple[int, bytes], behind: bytes = b"") -> bytes:
    """Return a handshake message with these extensions, without a record around it."""
    listed = b"".join(kind.to_bytes(2) + vector(content, 2) for kind, content in extensions)
    body = b"\x03\x03" + bytes(32) + vector(b"", 1) + vector(b"\x13\x01", 2) + vector(b"\0", 1) + vector(listed, 2)
    return b"\x01" + vector(body + behind, 3)


def in_records(message: bytes, *sizes: int) -> bytes:
    """Return a message split into records of these sizes; the last takes the rest."""
    records = b""
    for size in (*sizes, len(message)):
        part, message = message[:size], message[size:]
        if part:
            records += b"\x16\x03\x01" + vector(part, 2)
    return records
