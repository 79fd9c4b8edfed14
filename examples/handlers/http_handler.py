#!/usr/bin/env python3
"""An HTTP handler in Python, with nothing but the standard library.

    python3 http_handler.py 8080 &
    windlass worker -q shop/reports --concurrency 8 --http http://127.0.0.1:8080/tasks

The worker posts each task as JSON. A 2xx answer is a success and its body the
result; 400, 413, 415 and 422 are wrong for good; 429, or 503 with Retry-After,
is "slow down"; everything else is worth another attempt. The header
Windlass-Outcome (permanent, retry, rate-limited) overrides the status.
"""

import json
import signal
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Windlass:
    """The worker's local API, for one attempt at one task."""

    def __init__(self, headers):
        # Both are in the headers of the task: the token is this very attempt's.
        self.url, self.token = headers["Windlass-Api"], headers["Windlass-Api-Token"]

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer " + self.token},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def is_cancelled(self):
        try:
            return self.call("GET", "/v1/cancelled")["cancelled"]
        except urllib.error.HTTPError as error:
            return error.code == 410  # the attempt is over already


class Handler(BaseHTTPRequestHandler):
    # Keeps connections open between tasks; answers then need a Content-Length.
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        task = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pages = task["payload"].get("pages") if isinstance(task["payload"], dict) else None
        if not isinstance(pages, list):
            return self.answer(422, {"error": "the payload names no pages"})
        windlass = Windlass(self.headers)
        for number, page in enumerate(pages, start=1):
            # The worker has dropped its request if the task was cancelled;
            # this is how a thread that is busy elsewhere notices.
            if windlass.is_cancelled():
                return self.answer(503, {"error": "cancelled"})
            windlass.call("POST", "/v1/progress", {"page": number, "of": len(pages)})
            if page == "slow down":
                return self.answer(429, {"error": "too many pages"}, {"Retry-After": "1"})
        self.answer(200, {"pages": len(pages), "attempt": task["attempt"]})

    def answer(self, status, body, headers=None):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass  # the worker logs each task


if __name__ == "__main__":
    # The first process of a container does not end at SIGTERM unless it says so.
    # Nothing is lost: the worker is told first, and its tasks are over by then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Handler)
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()
