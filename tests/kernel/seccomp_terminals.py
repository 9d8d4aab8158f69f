# SPDX-License-Identifier: Apache-2.0
"""Small programs that live from ioctl requests: terminals, attributes of files, network interfaces. Data only.

Each prints `ok` as its last line.
"""

from typing import Final

JOBS: Final = r"""
import os, pty, re, select, termios, time
child, master = pty.fork()
if child == 0:
    os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "-i"])
seen = b""
def until(condition):
    global seen
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, seen
        if select.select([master], [], [], 0.01)[0]: seen += os.read(master, 4096)
def shows(pattern): until(lambda: re.search(pattern, seen))
def types(text): os.write(master, text)
def in_front(): return os.tcgetpgrp(master)
termios.tcsetwinsize(master, (33, 77))
until(lambda: in_front() == child)
types(b"stty size; echo sized$((1 + 1))\n")
shows(rb"33 77\r\n.*sized2")
# What is typed before the new program has started may be lost
types(b"sh -c 'echo up$((1 + 1)); exec sleep 1000'\n")
shows(rb"up2")
types(b"\x1a")
shows(rb"Stopped .*sleep 1000")
until(lambda: in_front() == child)
types(b"bg; jobs; echo listed$((1 + 1))\n")
shows(rb"(?s)Running .*sleep 1000.*listed2")
types(b"fg\n")
until(lambda: in_front() != child)
types(b"\x03")
until(lambda: in_front() == child)
types(b"echo code$?; read -s hidden; echo ${#hidden}letters\n")
shows(rb"code130")
# At the prompt there is no echo either, but no line is read as a whole
until(lambda: termios.tcgetattr(master)[3] & (termios.ICANON | termios.ECHO) == termios.ICANON)
types(b"secret\n")
shows(rb"6letters")
assert b"secret" not in seen and b"no job control" not in seen, seen
types(b"exit 7\n")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("ok")
"""
SCRIPT: Final = """
set -e
script -qec 'tty; stty -a; echo 42' typed > /dev/null
grep -q '^/dev/pts/' typed
grep -q '^speed' typed
grep -q '^42' typed
echo ok
"""
TMUX: Final = """
set -e
export TMUX_TMPDIR=/tmp TERM=xterm LC_ALL=C.UTF-8
tmux -f /dev/null new-session -d -x 80 -y 24 'bash --norc -i'
tmux send-keys 'echo $((6 * 7)) > answer; stty size >> answer; tmux wait-for -S done' Enter
tmux wait-for done
tmux split-window -d 'stty size >> answer; tmux wait-for -S split'
tmux wait-for split
tmux kill-server
grep -qx 42 answer
[ "$(grep -c ' 80$' answer)" = 2 ]
echo ok
"""
ATTRIBUTES: Final = """
set -e
seq 100000 > file
lsattr file | grep -q ' file$'
lsattr -dp . | grep -q ' .$'
/usr/sbin/filefrag -v file | grep -q extent
echo ok
"""
INTERFACES: Final = """
import ctypes, errno, fcntl, socket, struct
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SIOCGIFFLAGS, SIOCGIFADDR, SIOCETHTOOL, LOOPBACK, GET_SETTINGS = 0x8913, 0x8915, 0x8946, 8, 1
assert socket.if_nametoindex("lo") == 1 and socket.if_indextoname(1) == "lo"
asked = struct.pack("40s", b"lo")
assert fcntl.ioctl(one, SIOCGIFFLAGS, asked)[16] & LOOPBACK
assert socket.inet_ntoa(fcntl.ioctl(one, SIOCGIFADDR, asked)[20:24]) == "127.0.0.1"
# With any other error psutil.net_if_stats fails as a whole
settings = ctypes.create_string_buffer(struct.pack("I", GET_SETTINGS), 256)
try: fcntl.ioctl(one, SIOCETHTOOL, struct.pack("16sQ16x", b"lo", ctypes.addressof(settings)))
except OSError as error: assert error.errno == errno.EOPNOTSUPP, error
print("ok")
"""
