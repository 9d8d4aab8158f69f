# SPDX-License-Identifier: Apache-2.0
"""Small programs in many languages, each with threads, a connection by loopback and a process of its own. Data only.

Each script compiles and runs one in the working directory and prints `ok` as its last line.
"""

from typing import Final

GO: Final = """
set -e
export GOCACHE=$PWD/cache GOFLAGS=-mod=mod GO111MODULE=off CGO_ENABLED=0
cat > main.go <<'END'
package main
import ("bufio"; "fmt"; "net"; "os/exec"; "sync")
func main() {
    listener, err := net.Listen("tcp", "127.0.0.1:0")
    if err != nil { panic(err) }
    go func() {
        for {
            connection, err := listener.Accept()
            if err != nil { return }
            go func() {
                line, _ := bufio.NewReader(connection).ReadString('\\n')
                fmt.Fprint(connection, line)
                connection.Close()
            }()
        }
    }()
    var wait sync.WaitGroup
    for number := 0; number < 50; number++ {
        wait.Add(1)
        go func(number int) {
            defer wait.Done()
            connection, err := net.Dial("tcp", listener.Addr().String())
            if err != nil { panic(err) }
            fmt.Fprintf(connection, "%d\\n", number)
            line, _ := bufio.NewReader(connection).ReadString('\\n')
            if line != fmt.Sprintf("%d\\n", number) { panic(line) }
        }(number)
    }
    wait.Wait()
    out, err := exec.Command("echo", "ok").Output()
    if err != nil { panic(err) }
    fmt.Print(string(out))
}
END
go build -o program main.go
./program
"""
RUST: Final = """
set -e
cat > main.rs <<'END'
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
fn main() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || for _ in 0..8 {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0u8; 1];
        stream.read_exact(&mut byte).unwrap();
        stream.write_all(&byte).unwrap();
    });
    let clients: Vec<_> = (0..8u8).map(|number| thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[number]).unwrap();
        let mut byte = [0u8; 1];
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte[0], number);
    })).collect();
    for client in clients { client.join().unwrap(); }
    server.join().unwrap();
    print!("{}", String::from_utf8(Command::new("echo").arg("ok").output().unwrap().stdout).unwrap());
}
END
rustc -C debuginfo=0 -o program main.rs
./program
"""
NODE: Final = """
const { Worker, isMainThread, parentPort } = require("worker_threads");
const { execFile } = require("child_process");
const net = require("net"), fs = require("fs/promises");
if (!isMainThread) { parentPort.postMessage(42); return; }
const worker = new Promise((done) => new Worker(__filename).on("message", done));
const talk = new Promise((done) => {
    const server = net.createServer((socket) => socket.pipe(socket)).listen(0, "127.0.0.1", () => {
        const client = net.connect(server.address().port, "127.0.0.1", () => client.end("line"));
        client.on("data", (data) => { server.close(); done(String(data)); });
    });
});
const child = new Promise((done) => execFile("echo", ["ok"], (error, stdout) => done(error ? "" : stdout)));
Promise.all([worker, talk, child, fs.writeFile("made", "x")]).then(([number, line, out]) => {
    if (number === 42 && line === "line") process.stdout.write(out);
});
"""
JAVA: Final = """
import java.io.*;
import java.net.*;
import java.util.concurrent.*;
public class Main {
    public static void main(String[] words) throws Exception {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        ExecutorService pool = Executors.newFixedThreadPool(8);
        pool.submit(() -> { for (int i = 0; i < 8; i++) { try (Socket s = server.accept()) {
            s.getOutputStream().write(s.getInputStream().read()); } } return null; });
        for (int i = 0; i < 8; i++) {
            final int number = i;
            int answer = pool.submit(() -> { try (Socket s = new Socket("127.0.0.1", server.getLocalPort())) {
                s.getOutputStream().write(number); return s.getInputStream().read(); } }).get();
            if (answer != number) System.exit(1);
        }
        pool.shutdown();
        Process echo = new ProcessBuilder("echo", "ok").start();
        System.out.print(new String(echo.getInputStream().readAllBytes()));
    }
}
"""
SQLITE_SHELL: Final = """
set -e
sqlite3 base.sqlite 'pragma journal_mode = wal; create table t (x);' > /dev/null
for number in 1 2 3 4; do sqlite3 -cmd '.timeout 9000' base.sqlite "insert into t values ($number)" & done
wait
test "$(sqlite3 base.sqlite 'select sum(x) from t; pragma integrity_check;' | tr '\\n' ' ')" = '10 ok '
echo ok
"""
GDB: Final = """
set -e
cat > main.c <<'END'
#include <pthread.h>
static int seen;
static void *run(void *nothing) { seen = 42; return nothing; }
int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); pthread_join(t, 0); return seen != 42; }
END
gcc -g -pthread -o program main.c
gdb -batch -nx -ex 'break run' -ex run -ex 'print 6 * 7' -ex backtrace -ex next -ex next -ex 'print seen' \\
    -ex continue ./program > told 2>&1
grep -q '^Thread 2.*hit Breakpoint 1' told
grep -q '^\\$2 = 42' told
grep -q 'exited normally' told
echo ok
"""
