#!/usr/bin/env bash
# A client that has sent its request may close that half of the connection, as nc -N does, and read on:
# TCP and HTTP allow it. Python's servers made of asyncio then send nothing at all: uvicorn, on which
# vLLM runs, daphne, aiohttp and Tornado close the connection without a status line, while the
# application still computes. uvicorn and daphne tell it http.disconnect, if it listens. Waitress, which
# has threads, answers. Go's net/http has it both ways: the request's context ends with "context
# canceled", and what a handler writes all the same arrives.
#
# One would expect an answer, or one kind of refusal: the request was whole. asyncio closes a transport
# at the end of what it reads unless eof_received says otherwise, and Go reads ahead to find clients
# that have gone; neither can tell these from one that waits. A proxy or client that half-closes works
# in front of one server and gets an empty answer from another.
#
# Needs a Debian mirror among apt's sources, for packages of trixie.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suite"
go=go1.26.8 uvicorn=0.32.0 daphne=4.1.2 aiohttp=3.11.16 tornado=6.4.2 waitress=3.0.2
get trixie "python3-uvicorn=$uvicorn*" "python3-daphne=$daphne*" "python3-aiohttp=$aiohttp*" "python3-tornado=$tornado*" \
  "python3-waitress=$waitress*"

cat >asgi.py <<'EOS'
import asyncio

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (kind := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": kind + ".complete"})
        return
    told = []
    async def listen():
        while (kind := (await receive())["type"]) == "http.request":
            pass
        told.append(kind)
    listening = asyncio.create_task(listen())
    await asyncio.sleep(1)
    print("application: told", *told or ["nothing"], flush=True)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"answer"})
    listening.cancel()
EOS
cat >with_uvicorn.py <<'EOS'
import asgi, uvicorn
uvicorn.run(asgi.app, port=8199, log_level="critical")
EOS
cat >with_daphne.py <<'EOS'
import asgi
from daphne.server import Server
Server(asgi.app, endpoints=["tcp:8199:interface=127.0.0.1"], signal_handlers=False).run()
EOS
cat >with_aiohttp.py <<'EOS'
import asyncio
from aiohttp import web

async def answer(request):
    await asyncio.sleep(1)
    print("application: its connection is", "gone" if request.transport is None else "there", flush=True)
    return web.Response(text="answer")

app = web.Application()
app.router.add_get("/", answer)
web.run_app(app, host="127.0.0.1", port=8199, print=None)
EOS
cat >with_tornado.py <<'EOS'
import asyncio, tornado.web

class Handler(tornado.web.RequestHandler):
    async def get(self):
        await asyncio.sleep(1)
        self.write("answer")

async def main():
    tornado.web.Application([("/", Handler)]).listen(8199, "127.0.0.1")
    await asyncio.Event().wait()

asyncio.run(main())
EOS
cat >with_waitress.py <<'EOS'
import time, waitress

def app(environ, start):
    time.sleep(1)
    start("200 OK", [("Content-Length", "6")])
    return [b"answer"]

waitress.serve(app, listen="127.0.0.1:8199", _quiet=True)
EOS
cat >client.py <<'EOS'
import socket, sys, time

for _ in range(600):
    try:
        s = socket.create_connection(("127.0.0.1", 8199))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
if sys.argv[1] == "half-closed":
    s.shutdown(socket.SHUT_WR)
got = b"".join(iter(lambda: s.recv(4096), b"")).decode()
print(sys.argv[1] + ":", got.split("\r\n")[0], got.split("\r\n\r\n")[-1] or "nothing")
time.sleep(2)
EOS
cat >go.mod <<'EOS'
module example.org/finding
go 1.26
EOS
cat >main.go <<'EOS'
package main

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

func main() {
	panic(http.ListenAndServe("127.0.0.1:8199", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		fmt.Println("application: the context's error is", r.Context().Err())
		io.WriteString(w, "answer")
	})))
}
EOS
GOTOOLCHAIN="$go" CGO_ENABLED=0 go build -o server .

# ask NAME COMMAND...: a server's answers to a client that leaves the connection open and to one that does not.
ask() {
  echo "$1"
  ("${@:2}" 2>errors) &
  for how in open half-closed; do python trixie client.py "$how"; done
  pkill -P $! || true
  kill $! 2>/dev/null || true
  wait $! 2>/dev/null || true
}
for name in uvicorn daphne aiohttp tornado waitress; do ask "$name ${!name}" python trixie "with_$name.py"; done >seen
ask "$go" ./server >>seen

echo "expected of each: HTTP/1.1 200 OK answer, twice; seen:"
cat seen
diff - seen >changed <<'EOS' || { cat changed; echo "this has changed"; exit 1; }
uvicorn 0.32.0
application: told nothing
open: HTTP/1.1 200 OK answer
half-closed:  nothing
application: told http.disconnect
daphne 4.1.2
application: told nothing
open: HTTP/1.1 200 OK answer
half-closed:  nothing
application: told http.disconnect
aiohttp 3.11.16
application: its connection is there
open: HTTP/1.1 200 OK answer
half-closed:  nothing
application: its connection is gone
tornado 6.4.2
open: HTTP/1.1 200 OK answer
half-closed:  nothing
waitress 3.0.2
open: HTTP/1.1 200 OK answer
half-closed: HTTP/1.1 200 OK answer
go1.26.8
application: the context's error is <nil>
open: HTTP/1.1 200 OK answer
application: the context's error is context canceled
half-closed: HTTP/1.1 200 OK answer
EOS
