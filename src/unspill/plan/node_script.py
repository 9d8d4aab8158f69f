# SPDX-License-Identifier: Apache-2.0
"""A script that node loads before everything else, so that its own fetch, http and https find the proxy.

Needed by versions that know no NODE_USE_ENV_PROXY (before 22.21, and 23); in others it does nothing. It is put into
the sandbox as a file and named in NODE_OPTIONS by `--require`, which every version has.
"""

from __future__ import annotations

PLACE = b"/run/unspill-node-proxy.js"
SCRIPT = rb"""// SPDX-License-Identifier: Apache-2.0
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
