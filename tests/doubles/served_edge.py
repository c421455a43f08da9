"""Servers as far as an edge model needs them, in each one's form: scripted tokens, and faults.

Their forms are those of llama.cpp's server, of Ollama's `api/types.go`, of vLLM 0.32, of OpenAI's
completions (LM Studio) and of `mlx_lm/server.py` 0.32.
"""

import json
import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any

from edgewise.addresses import bundled
from edgewise.edge.base import Tokenizer
from edgewise.edge.named import open_tokenizer
from edgewise.edge.vocabulary import bytes_of

Event = dict[str, Any]
Likeliest = list[tuple[int, float]]

PROGRAMS = ("llama-server", "Ollama", "vLLM", "LM Studio", "mlx_lm.server")
MODEL = "qwen3:0.6b"
OLLAMA_CONTEXT = 4096
"""Ollama's own, on small machines."""

WRITTEN = 41
"""Tokens of a stream that was closed, by the server's meter."""

_IDLE = {"is_processing": False}


@dataclass
class LlamaEdge:
    """What it serves. `spoil` changes or ends a stream: it is given each event and its number."""

    program: str = "llama-server"
    url: str = ""
    path: Path = field(default_factory=lambda: bundled("edge"))
    models: tuple[str, ...] = (MODEL,)
    slots: int = 1
    context: int = 257
    status: int = 200
    location: str = ""
    filler: bytes = b""
    """Written without end behind the first token."""
    early: bytes = b""
    """Written without end instead of a stream's reply."""
    meta: Mapping[str, object] = field(default_factory=dict)
    """More of what llama-server says of its model."""
    keys: list[str | None] = field(default_factory=list)
    cookies: list[str | None] = field(default_factory=list)
    reply: Callable[[str], bytes | None] = lambda path: None
    spoil: Callable[[Event, int], Event | bytes | None] = lambda event, number: event
    lie: Callable[[Likeliest], Likeliest] = lambda likeliest: likeliest
    caches: bool = True
    lingers: int | None = None
    """So many looks at `/slots` a stream's slot stays busy behind its end; None: no such path."""
    busy: dict[int, int] = field(default_factory=dict)
    """How many looks are left, by the seed of the request."""
    elsewhere: int = 0
    """Requests that found the slot of their own prefix busy."""
    ends: int = 1 << 30
    """So many tokens a request are written before the answer ends."""
    story: Sequence[int] = ()
    """If any, the likeliest id by position, again and again."""
    loaded: tuple[int, bool] | None = None
    """Ollama's context, and whether it moves on at its end, of the model as it was loaded last."""
    most: int = 1 << 20
    """The model's own context, of which Ollama loads no more."""
    reloads: int = 0
    """Requests for which Ollama loaded the model anew: what it had read is lost."""
    shown: Mapping[str, object] = field(default_factory=dict)
    """Ollama's `/api/show`: what the model has of its own there."""
    held: set[tuple[int, ...]] = field(default_factory=set)
    """What mlx_lm.server's cache holds: asked to continue exactly that, it never answers again."""
    dead: bool = False
    closes: str = ""
    """Ends a connection with each reply: by "HTTP/1.0", as mlx_lm.server, or by "close"."""
    details: Mapping[str, object] = field(default_factory=dict)
    """More of each model in Ollama's list."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    connections: list[socket] = field(default_factory=list)
    tokenizer: Tokenizer = field(
        default_factory=cache(lambda: open_tokenizer(str(bundled("edge"))))
    )

    @property
    def size(self) -> int:
        return self.tokenizer.size

    def likeliest(self, ids: list[int]) -> Likeliest:
        """Three ids and their logprobs, by the text that stands before."""
        text = bytes_of(self.tokenizer, ids)
        first = (7 * sum(text) + len(text)) % 200 + 300
        if self.story:
            first = self.story[len(ids) % len(self.story)]
        return [(first + i, math.log(p)) for i, p in enumerate((0.6, 0.3, 0.1 - 1e-6))]

    def text(self, token: int) -> str:
        if not 0 <= token < self.size:
            return "\ufffd"
        piece = self.tokenizer.piece(token).decode("utf-8", "replace")
        return piece or self.tokenizer.special.get(token, "")

    def ids(self, prompt: list[int] | str) -> list[int]:
        return prompt if isinstance(prompt, list) else self.tokenizer.encode_prompt(prompt)

    def event(self, ids: list[int], written: int) -> Event:
        """One token in the program's form."""
        token, top = self.likeliest(ids)[0], self.lie(self.likeliest(ids))
        return _FORMS[self.program](self, token, top, written)

    def look(self) -> list[dict[str, Any]]:
        """`/slots`: one is another client's."""
        busy = [seed for seed in self.busy if self.busy[seed] > 0]
        self.busy |= {seed: self.busy[seed] - 1 for seed in busy}
        wrote = {"is_processing": True, "next_token": [{"n_decoded": WRITTEN}]}
        return [{**wrote, "params": {"seed": seed}} for seed in (*busy, 1)] + [_IDLE]

    def replace(self) -> None:
        """Ends every connection, as one that is started anew with another model."""
        for one in self.connections:
            with suppress(OSError):
                one.shutdown(SHUT_RDWR)
        self.path, self.models = Path("/other.gguf"), ("other",)

    def load(self, body: dict[str, Any]) -> None:
        """Loads the model for a request, where it is not loaded as that wants it."""
        context = min(self.most, body["options"].get("num_ctx", OLLAMA_CONTEXT))
        wanted = context, body.get("shift", True)
        self.reloads += self.loaded not in (None, wanted)
        self.loaded = wanted

    def known(self) -> dict[str, Any]:
        """Replies by path."""
        settings = {"n_ctx": self.context}
        owner = {"vLLM": "vllm", "LM Studio": "organization_owner"}.get(self.program)
        entry: dict[str, Any] = {"object": "model"} | ({"owned_by": owner} if owner else {})
        if self.program == "vLLM":
            entry |= {"max_model_len": self.context, "root": "owner/model"}
        models = [{**entry, "id": name} for name in self.models]
        if self.program == "llama-server":
            props = {"model_path": str(self.path), "total_slots": self.slots}
            return {
                "/props": {**props, "default_generation_settings": settings},
                "/v1/models": {"data": [{"id": "x", "meta": {"n_vocab": self.size, **self.meta}}]},
            }
        if self.program == "Ollama":
            names = [{"name": name, "size": 1, **self.details} for name in self.models]
            held = {"context_length": self.loaded[0]} if self.loaded else None
            running = [{"name": name, **held} for name in self.models if held]
            return {"/api/tags": {"models": names}, "/api/ps": {"models": running}}
        return {"/v1/models": {"object": "list", "data": models}}


def _llama(served: LlamaEdge, token: tuple[int, float], top: Likeliest, written: int) -> Event:
    rows = [{"id": i, "logprob": p} for i, p in top]
    row = {"id": token[0], "logprob": token[1], "top_logprobs": rows}
    one = {"stop": False, "tokens": [token[0]], "tokens_predicted": written}
    return {**one, "content": "x", "completion_probabilities": [row]}


def _ollama(served: LlamaEdge, token: tuple[int, float], top: Likeliest, written: int) -> Event:
    rows = [{"token": served.text(i), "logprob": p} for i, p in top]
    first = {"token": served.text(token[0]), "logprob": top[0][1] if top else token[1]}
    row = {**first, "bytes": list(first["token"].encode()), "top_logprobs": rows}
    return {"model": MODEL, "response": first["token"], "done": False, "logprobs": [row]}


def _openai(served: LlamaEdge, token: tuple[int, float], top: Likeliest, written: int) -> Event:
    ids = served.program == "vLLM"

    def named(one: int) -> str:
        return f"token_id:{one}" if ids else served.text(one)

    logprobs = {
        "tokens": [named(token[0])],
        "token_logprobs": [top[0][1] if top else token[1]],
        "top_logprobs": [{named(i): p for i, p in top}],
        "text_offset": [0],
    }
    choice = {"index": 0, "text": served.text(token[0]), "logprobs": logprobs}
    return {"object": "text_completion", "choices": [{**choice, "finish_reason": None}]}


def _mlx(served: LlamaEdge, token: tuple[int, float], top: Likeliest, written: int) -> Event:
    rows = [{"id": i, "token": served.text(i), "logprob": p} for i, p in reversed(top)]
    return {"text": served.text(token[0]), "top_logprobs": rows, **(rows[0] if rows else {})}


_FORMS = {
    "llama-server": _llama,
    "Ollama": _ollama,
    "vLLM": _openai,
    "LM Studio": _openai,
    "mlx_lm.server": _mlx,
}


@contextmanager
def llama_edge(**chosen: Any) -> Generator[LlamaEdge]:
    """Serves on 127.0.0.1 until the block ends."""
    served = LlamaEdge(**chosen)
    ollama = served.program == "Ollama"

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True
        protocol_version = "HTTP/1.0" if served.closes == "HTTP/1.0" else "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            served.connections.append(self.connection)

        def log_message(self, format: str, *args: object) -> None: ...

        def send(self, made: object, status: int | None = None) -> None:
            body = made if isinstance(made, bytes) else json.dumps(made).encode()
            self.send_response(status or served.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", served.location)
            self.send_header("Set-Cookie", "device=4711; Path=/")
            self.send_header("Content-Length", str(len(body)))
            if served.closes == "close":
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            served.keys.append(self.headers["Authorization"])
            if self.path == "/slots" and served.lingers is not None:
                self.send(served.look())
                return
            known = served.known()
            made = served.reply(self.path) or known.get(self.path)
            self.send(made, None if made or served.status != 200 else 404)

        def do_POST(self) -> None:
            served.keys.append(self.headers["Authorization"])
            served.cookies.append(self.headers["Cookie"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            spoilt = served.reply(self.path)
            if self.path == "/tokenize":
                text = body.get("content", body.get("prompt"))
                self.send(spoilt or {"tokens": served.tokenizer.encode(text)})
                return
            if self.path == "/api/show":
                self.send(spoilt or dict(served.shown), None if served.shown else 404)
                return
            if ollama:
                served.load(body)
            served.requests.append(body)
            seed = body.get("seed", -1)
            served.elsewhere += served.busy.get(seed, 0) > 0
            served.busy[seed] = served.lingers or 0
            most = body.get("n_predict") or body.get("max_tokens")
            most = min(most or body["options"]["num_predict"], served.ends)
            try:
                if body.get("stream"):
                    self.stream(served.ids(body["prompt"]), most)
                else:
                    self.whole(served.ids(body["prompt"]), most, spoilt)
            except OSError:
                pass  # the other side went on elsewhere

        def whole(self, ids: list[int], most: int, spoilt: bytes | None) -> None:
            prompt, made = len(ids), []
            served.dead |= tuple(ids) in served.held
            if served.dead:
                self.close_connection = True
                return
            for number in range(1, most + 1):
                event = served.event(ids, number)
                spoiled = served.spoil(event, number)
                if served.program == "mlx_lm.server" and not isinstance(spoiled, dict):
                    self.send(spoiled or b"")
                    return
                made.append(event)
                ids = [*ids, served.likeliest(ids)[0][0]]
            if served.program == "mlx_lm.server":
                served.held.add(tuple(ids))
            usage: Event = {"prompt_tokens": prompt, "completion_tokens": most}
            again = 1 if served.caches else prompt
            usage["prompt_tokens_details"] = {"cached_tokens": prompt - again}
            forms: dict[str, Any] = {
                "Ollama": {"done": True, "prompt_eval_count": prompt, "eval_count": most},
                **{key: {"choices": [], "usage": usage} for key in ("LM Studio", "vLLM")},
                "llama-server": {**made[0], "timings": {"prompt_n": again}},
            }
            if served.program == "mlx_lm.server":
                text = bytes_of(served.tokenizer, ids[prompt:]).decode("utf-8", "replace")
                choice = {"index": 0, "text": text, "logprobs": {"content": made}}
                forms["mlx_lm.server"] = {"choices": [choice], "usage": usage}
            self.send(spoilt or forms[served.program])

        def stream(self, ids: list[int], most: int) -> None:
            self.close_connection = True
            while served.early:
                self.wfile.write(served.early)
            self.send_response(200)
            self.end_headers()
            start = b"" if ollama else b"data: "
            prompt, held = len(ids), b""
            reason = "stop" if most == served.ends else "length"
            for number in range(1, most + 1):
                made, ids = served.event(ids, number), [*ids, served.likeliest(ids)[0][0]]
                if ollama and served.story:
                    # What is no character yet waits, and is dropped where it is the last.
                    held += served.tokenizer.piece(ids[-1])
                    if "\ufffd" in (text := held.decode("utf-8", "replace")):
                        continue
                    if made["response"] != text:
                        last = {"token": "", "logprob": -0.1, "top_logprobs": []}
                        made |= {"response": text, "logprobs": [last]}
                    held = b""
                event = served.spoil(made, number)
                if event is None:
                    return
                data = event if isinstance(event, bytes) else json.dumps(event).encode()
                self.wfile.write(start + data + b"\n\n")
                while served.filler:
                    self.wfile.write(served.filler)
            last: Event = {"stop": True, "tokens": []}
            if ollama:
                last = {"response": "", "done": True, "done_reason": reason}
                last["prompt_eval_count"] = prompt
            elif served.program != "llama-server":
                last = {"choices": [{"text": "", "logprobs": None, "finish_reason": reason}]}
            self.wfile.write(start + json.dumps(last).encode() + b"\n\n")
            if not ollama:
                self.wfile.write(b"data: [DONE]\n\n" * (served.program != "llama-server"))

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
