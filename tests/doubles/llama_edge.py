"""A llama-server as far as an edge model needs one: scripted tokens, and faults on demand."""

import json
import math
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from edgewise.addresses import bundled
from edgewise.edge.named import open_tokenizer

Event = dict[str, Any]


@dataclass
class LlamaEdge:
    """What it serves. `spoil` changes or ends a stream: it is given each event and its number."""

    url: str = ""
    path: Path = field(default_factory=lambda: bundled("edge"))
    slots: int = 1
    context: int = 257
    status: int = 200
    location: str = ""
    filler: bytes = b""
    """Written without end behind the first token."""
    keys: list[str | None] = field(default_factory=list)
    reply: Callable[[str], bytes | None] = lambda path: None
    spoil: Callable[[Event, int], Event | bytes | None] = lambda event, number: event
    requests: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0

    def likeliest(self, ids: list[int]) -> list[tuple[int, float]]:
        """Three ids and their logprobs, by what stands before."""
        first = (7 * sum(ids) + len(ids)) % 200 + 300
        return [(first + i, math.log(p)) for i, p in enumerate((0.6, 0.3, 0.1 - 1e-6))]

    def event(self, ids: list[int], written: int) -> Event:
        top = self.likeliest(ids)
        row = {"id": top[0][0], "logprob": top[0][1]}
        row["top_logprobs"] = [{"id": i, "logprob": p} for i, p in top]  # type: ignore[assignment]
        one = {"stop": False, "tokens": [top[0][0]], "tokens_predicted": written}
        return {**one, "content": "x", "completion_probabilities": [row]}


@contextmanager
def llama_edge(**chosen: Any) -> Generator[LlamaEdge]:
    """Serves on 127.0.0.1 until the block ends."""
    served = LlamaEdge(**chosen)
    tokenizer = open_tokenizer(str(bundled("edge")))
    served.size = tokenizer.size

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def send(self, body: bytes, kind: str = "application/json") -> None:
            self.send_response(served.status)
            self.send_header("Content-Type", kind)
            self.send_header("Location", served.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            served.keys.append(self.headers["Authorization"])
            settings = {"n_ctx": served.context}
            known: dict[str, Any] = {
                "/props": {
                    "model_path": str(served.path),
                    "total_slots": served.slots,
                    "default_generation_settings": settings,
                },
                "/v1/models": {"data": [{"id": "x", "meta": {"n_vocab": served.size}}]},
            }
            self.send(served.reply(self.path) or json.dumps(known.get(self.path)).encode())

        def do_POST(self) -> None:
            served.keys.append(self.headers["Authorization"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                ids = tokenizer.encode(body["content"])
                self.send(served.reply(self.path) or json.dumps({"tokens": ids}).encode())
                return
            served.requests.append(body)
            if body.get("stream"):
                self.stream(body)
            else:
                made = served.event(body["prompt"], 1)
                self.send(served.reply(self.path) or json.dumps(made).encode())

        def stream(self, body: dict[str, Any]) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            ids = list(body["prompt"])
            try:
                for number in range(1, body["n_predict"] + 1):
                    event = served.spoil(served.event(ids, number), number)
                    if event is None:
                        return
                    data = event if isinstance(event, bytes) else json.dumps(event).encode()
                    self.wfile.write(b"data: " + data + b"\n\n")
                    ids.append(served.likeliest(ids)[0][0])
                    while served.filler:
                        self.wfile.write(served.filler)
                self.wfile.write(b'data: {"stop": true, "tokens": []}\n\n')
            except OSError:
                pass  # the other side went on elsewhere

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
