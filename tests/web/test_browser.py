"""The gateway's page in Chromium, beside the real gateway and the bundled pair."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, WebSocket, expect

from edgewise.addresses import bundled
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Token
from edgewise.gateway.browser_page import ENGINE, FOLDER, PageModel
from edgewise.gateway.local import LocalEngine
from edgewise.keys.keys import add_key
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, prompt_of
from edgewise.routers.thresholds import SHARES
from edgewise.routers.untrained import MaxProb
from edgewise.wire.protocol import tokenizer_fingerprint
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.gateway.running import Running, gateway
from tests.server.conftest import browser
from tests.server.page_asking import (
    COMPOSING,
    PATIENCE,
    SIZES,
    ask,
    ask_example,
    begin,
    compose,
    done,
)

__all__ = ["browser"]  # a fixture

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        not (FOLDER / ENGINE).is_file(), reason="needs the page's engine: make test-web"
    ),
]

THRESHOLD = 0.6
"""The bundled edge passes it at every tenth token."""

NEAR = 0.05
"""Scores differ so much between two builds of llama.cpp."""

ROUTER = bundled("routers") / "bundled-edge"
MODEL = PageModel("bundled", bundled("edge"), "141b49fbc0933471", ROUTER, 0.05)
EXAMPLES = bundled("edge").parents[1] / "server" / "page" / "examples.json"
SUM = pocketqa().questions[4].prompt.removeprefix("Question: ").partition(" Answer and")[0]
SCHEMES: tuple[Any, ...] = ("light", "dark")
PAGES = int(os.environ.get("PAGES", "3"))
"""That ask at once."""

SPECIAL = "Is <|end|> or <|im_end|> an end? <|user|> naïve 日本 🙂"

PLAIN = """(node) => {
  const copy = node.cloneNode(true);
  for (const struck of copy.querySelectorAll("rt")) struck.remove();
  return copy.textContent.trim();
}"""

LOADED = """
const lib = await import("./lib/index.js");
const { edgeOf } = await import("./model.js");
const edge = await edgeOf(await (await fetch("model.gguf")).blob());
const answered = async (content, policy, more = {}) => {
  const prompt = await edge.promptIds([{ role: "user", content }]);
  const router = lib.routerNamed("max-prob");
  const tokens = [];
  const options = { edge, router, policy: new lib.Policy(policy), maxTokens: 96, ...more };
  for await (const event of lib.stream(prompt, options)) {
    if (event.type === "token") tokens.push([event.id, event.source]);
  }
  return tokens;
};
"""


@contextmanager
def serving(keys: Path | None = None) -> Iterator[Running]:
    with gateway([LocalEngine()], page=MODEL, keys=keys) as running:
        yield running


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serving() as running:
        yield running.url


def show(page: Page, url: str, path: str = "/") -> Page:
    """Ready to answer."""
    page.goto(url + path)
    expect(page.locator("#state")).to_have_text("Ready.", timeout=PATIENCE)
    return page


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway that wants a key, and one."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    secret = add_key(keys, "phone")
    with serving(keys) as running:
        yield running.url, secret


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """No test may leave an error of its scripts."""
    problems: list[str] = []
    with browser.new_context() as made:
        made.on("weberror", lambda error: problems.append(str(error.error)))
        yield made
    assert problems == []


@pytest.fixture(scope="module")
def shared(browser: Browser, served: str) -> Iterator[BrowserContext]:
    """Where no worker keeps files, an open page's process compiles the engine once for all."""
    with browser.new_context(service_workers="block") as made:
        made.new_page().goto(f"{served}/page/icon.svg")
        yield made


@pytest.fixture
def tab(shared: BrowserContext) -> Iterator[Page]:
    """No test may leave an error of its scripts."""
    problems: list[str] = []
    page = shared.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    page.close()
    assert problems == []


@pytest.fixture
def page(tab: Page, served: str) -> Iterator[Page]:
    """No test may leave an error in its console."""
    problems: list[str] = []
    tab.on("console", lambda said: said.type == "error" and problems.append(said.text))
    yield show(tab, served)
    assert problems == []


def share(page: Page, percent: int) -> None:
    page.get_by_label("Cloud share").fill(str(percent))


def ask_both(page: Page) -> None:
    """With a share at which the cloud writes some of the answer."""
    share(page, 30)
    ask(page, SUM)


def answers_alone(page: Page) -> None:
    """Wait for the whole answer, on a clock that hurries through a consult's seconds of retries."""
    page.clock.install()
    while not page.get_by_role("button", name="Send").is_visible():
        page.clock.fast_forward(100)
    done(page)


def the_cloud_writes(page: Page) -> None:
    """Asked again where a busy machine missed the consult's deadline of some seconds: seen so."""
    for _ in range(5):
        ask_both(page)
        if "The cloud wrote" in (page.locator(".caption").last.text_content() or ""):
            return
    pytest.fail("the cloud wrote nothing of five answers")


def choose_router(page: Page, name: str) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Router").select_option(name)
    page.keyboard.press("Escape")


def forget(page: Page) -> None:
    """All that the browser keeps; the settings stay open."""
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#kept")).not_to_be_empty()


def says(page: Page, caption: str) -> None:
    """Below the last answer."""
    expect(page.locator(".caption").last).to_contain_text(caption)


def run(page: Page, script: str, argument: Any = None) -> Any:
    return page.evaluate(f"async (given) => {{ {LOADED} {script} }}", argument)


def test_ten_questions_are_answered_as_by_python(page: Page, served: str) -> None:
    """Token for token, but where how a build of llama.cpp rounds decides."""
    questions = pocketqa().questions[20:30]
    asked = [question.prompt for question in questions]
    here = run(
        page,
        """
        const gateway = new lib.Gateway(location.href, edge);
        const policy = { threshold: given.threshold, deadline: 60 };
        const answers = [];
        for (const content of given.asked) {
          answers.push(await answered(content, policy, { gateway }));
        }
        gateway.close();
        await edge.close();
        return answers;
        """,
        {"asked": asked, "threshold": THRESHOLD},
    )
    different = 0
    with LlamaModel(bundled("edge"), threads=1) as edge, closing(GatewayCloud(served)) as cloud:
        cloud.check_vocabulary(edge.tokenizer)
        policy = Policy(threshold=THRESHOLD, deadline=60.0)
        decoder = Decoder(edge, router=MaxProb(), policy=policy, cloud=cloud)
        for question, found in zip(questions, here, strict=True):
            ids = question_ids(edge.tokenizer, question)
            wanted = decoder.generate(ids, max_tokens=96, candidates=True).tokens
            if found != [[token.id, token.source] for token in wanted]:
                different += 1
                pairs = zip(wanted, found, strict=False)
                first = next(token for token, other in pairs if [token.id, token.source] != other)
                assert is_close(first), (question.id, first)
    print(f"{different} of {len(questions)} answers differ")
    assert different <= 1
    assert any(source == "cloud" for answer in here for _, source in answer)


def is_close(token: Token) -> bool:
    """Whether rounding decided who writes it, or which of two likely ones it is."""
    by_score = token.score is not None and abs(token.score - THRESHOLD) < NEAR
    gap = token.edge[0].logprob - token.edge[1].logprob if token.edge else 1.0
    return by_score or gap < 2 * NEAR


def test_prompts_have_the_ids_that_python_gives_them(page: Page) -> None:
    """Whatever is said, only the template makes control tokens."""
    conversation = [("user", "Hello"), ("assistant", "Hi."), ("user", SPECIAL)]
    script = """
    const ids = await edge.promptIds(given);
    return [edge.tokenizer, ids, edge.context, [...edge.eosIds].sort()];
    """
    told = run(page, script, [{"role": role, "content": said} for role, said in conversation])
    messages = [Message(role, said) for role, said in conversation]  # type: ignore[arg-type]
    with LlamaModel(bundled("edge"), threads=1) as edge:
        fingerprint, ids = (
            tokenizer_fingerprint(edge.tokenizer),
            prompt_of(edge.tokenizer, messages).ids,
        )
        assert told == [fingerprint, list(ids), edge.context, sorted(edge.tokenizer.eos_ids)]


def test_the_first_screen_shows_what_the_cloud_is_for(page: Page) -> None:
    """With the dial as it stands; its questions are those of the server's page."""
    examples = json.loads(EXAMPLES.read_text())
    assert page.locator("#examples b").all_inner_texts() == [one["title"] for one in examples]
    for example in examples:
        ask_example(page, example["title"])
        assert page.locator(".question").inner_text() == example["question"]
        expect(page.locator(".caption")).to_contain_text("instead of")
        answer = page.locator(".text").evaluate(PLAIN)
        assert answer.endswith(f"the answer is {example['right']}.")
        page.get_by_role("button", name="New chat").click()


STOPPED_AT_ONCE = """() => {
    document.getElementById("ask").requestSubmit();
    document.getElementById("ask").requestSubmit();
}"""


def test_a_router_without_a_calibration_is_measured_once(page: Page) -> None:
    """It can be stopped, and is made again: nothing of it is kept, and no question has left."""
    choose_router(page, "max-prob")
    page.get_by_label("Message").fill(SUM)
    page.evaluate(STOPPED_AT_ONCE)
    says(page, "It was stopped.")
    kept = page.evaluate("Object.keys(localStorage)")
    assert [name for name in kept if name.startswith("edgewise.starts")] == []
    expect(page.locator("#sent-sum")).to_have_text("nothing")
    ask(page, SUM)
    model = page.request.get(f"{page.url}config.json").json()["model"]["sha256"]
    starts = page.evaluate(
        "(name) => localStorage.getItem(name)", f"edgewise.starts max-prob {model}"
    )
    assert [share for share, _ in json.loads(starts)] == list(SHARES)


def test_an_answer_says_who_wrote_what(page: Page) -> None:
    """By keyboard alone; the cloud's words are marked, and named in text below."""
    page.get_by_label("Cloud share").focus()
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    page.get_by_label("Message").focus()
    page.keyboard.type(SUM)
    page.keyboard.press("Enter")
    expect(page.locator(".caption")).to_contain_text("The cloud wrote")
    marked = page.locator(".text mark").first
    assert "underline" in marked.evaluate("(node) => getComputedStyle(node).textDecorationLine")
    expect(page.locator(".meters")).to_contain_text("tokens/s")
    expect(page.locator("#sent-sum")).to_contain_text(re.compile(r"[1-9]\d* token ids in"))
    expect(page.get_by_label("Message")).to_be_focused()


def test_a_key_of_an_input_method_sends_nothing(page: Page) -> None:
    for how in COMPOSING:
        compose(page.get_by_label("Message"), "Enter", how)
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Message")).to_have_value("にほんご")


def test_nothing_leaves_at_a_share_of_0_or_disconnected(page: Page) -> None:
    sockets: list[str] = []
    requests: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.on("request", lambda request: requests.append(request.url))
    share(page, 0)
    ask(page, SUM)
    page.get_by_role("button", name="Disconnect").click()
    ask_both(page)
    expect(page.locator(".caption")).to_have_count(2)
    says(page, "All by this device")
    expect(page.locator("#sent-sum")).to_have_text("nothing")
    assert (sockets, requests) == ([], [])


def test_a_gateway_that_is_killed_ends_no_answer(context: BrowserContext) -> None:
    """And without it the page opens again, and answers alone."""
    with serving() as running:
        page = show(context.new_page(), running.url)
        page.evaluate("() => navigator.serviceWorker.ready.then(() => null)")
        share(page, 30)
        begin(page, f"{SUM} " * 3)
        expect(page.locator("#sent-sum")).to_contain_text("token ids in")
    answers_alone(page)
    expect(page.locator(".caption").last).not_to_be_empty()
    expect(page.locator(".answer").last).to_have_attribute("aria-busy", "false")
    ask(page, SUM)
    says(page, "All by this device")
    page.reload()
    expect(page.locator("#state")).to_have_text("Ready.", timeout=PATIENCE)
    begin(page, SUM)
    answers_alone(page)
    says(page, "All by this device")


def test_a_page_without_a_key_takes_one_from_the_address(
    context: BrowserContext, keyed: tuple[str, str]
) -> None:
    url, secret = keyed
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#state")).to_contain_text("wants a key", timeout=PATIENCE)
    links: list[WebSocket] = []
    page.on("websocket", lambda link: links.append(link))
    share(page, 30)
    ask(page, SUM)
    says(page, "All by this device")
    expect(page.locator("#state")).to_contain_text("wants a key")
    assert links == [], "it knows that it would be refused"
    page.evaluate("location.hash = 'key=ew-wrong'")
    expect(page.locator("#state")).to_contain_text("does not accept")
    # In a page that is open it is taken as well.
    page.evaluate("(key) => { location.hash = `key=${key}` }", secret)
    expect(page.locator("#state")).to_have_text("Ready.")
    assert secret not in page.url
    the_cloud_writes(page)


KEPT = """async () => {
    const addresses = [];
    for (const name of await caches.keys())
        for (const { url } of await (await caches.open(name)).keys()) addresses.push(url);
    const storages = [{ ...localStorage }, { ...sessionStorage }, document.cookie];
    const field = document.getElementById("key").value;
    const workers = await navigator.serviceWorker.getRegistrations();
    return { addresses, storages, field, workers: workers.length };
}"""


def test_a_key_is_kept_in_its_tab_alone_and_forgotten(
    context: BrowserContext, keyed: tuple[str, str]
) -> None:
    """Not in the worker's files, though they were asked for with it; then nowhere."""
    url, secret = keyed
    page = show(context.new_page(), url, f"/page/#key={secret}")
    assert secret not in page.url
    page.evaluate("() => navigator.serviceWorker.ready.then(() => null)")
    page.close()
    # The worker is in control from here on.
    page = show(context.new_page(), url, f"/page/?key={secret}#key={secret}")
    assert page.evaluate("() => navigator.serviceWorker.controller !== null")
    assert secret not in page.url
    kept = page.evaluate(KEPT)
    assert kept["addresses"]
    assert secret not in json.dumps(kept["addresses"])
    assert kept["storages"] == [{}, {"edgewise.key": secret}, ""]
    the_cloud_writes(page)
    forget(page)
    nothing = {"addresses": [], "storages": [{}, {}, ""], "field": "", "workers": 0}
    assert page.evaluate(KEPT) == nothing
    page.keyboard.press("Escape")
    ask(page, SUM)
    says(page, "All by this device")


CONSULTS_LOST = """
const { send } = WebSocket.prototype;
WebSocket.prototype.send = function (frame) {
  // The second byte is the frame's kind.
  if (frame[1] !== 3) send.call(this, frame);
};
"""


@contextmanager
def disconnected_in_a_consult(page: Page) -> Iterator[None]:
    """Before which the block runs; then this device goes on alone."""
    share(page, 30)
    begin(page, SUM)
    expect(page.locator("#sent-rows td:nth-child(2)")).to_have_text("1")
    yield
    page.get_by_role("button", name="Disconnect").click()
    done(page)
    says(page, "All by this device")


def test_a_key_that_was_forgotten_is_not_used_again(tab: Page, keyed: tuple[str, str]) -> None:
    """Not by the answer that is being written either."""
    url, secret = keyed
    sockets: list[str] = []
    tab.on("websocket", lambda socket: sockets.append(socket.url))
    tab.add_init_script(CONSULTS_LOST)
    page = show(tab, url, f"/page/#key={secret}")
    with disconnected_in_a_consult(page):
        forget(page)
        page.keyboard.press("Escape")
    assert len(sockets) == 1


def test_disconnected_in_a_consult_nothing_more_leaves(tab: Page, served: str) -> None:
    """No question why the consult failed, nor whether another key is taken."""
    tab.add_init_script(CONSULTS_LOST)
    page = show(tab, served)
    requests: list[str] = []
    with disconnected_in_a_consult(page):
        page.on("request", lambda request: requests.append(request.url))
    forget(page)
    assert requests == []


BLOCKED = """
const blocked = { get() { throw new DOMException("Access is denied.", "SecurityError"); } };
for (const name of ["localStorage", "sessionStorage", "caches"])
    Object.defineProperty(window, name, blocked);
Object.defineProperty(Navigator.prototype, "serviceWorker", blocked);
"""


def test_a_browser_that_blocks_storage_has_the_page(tab: Page, keyed: tuple[str, str]) -> None:
    url, secret = keyed
    tab.add_init_script(BLOCKED)
    page = show(tab, url, f"/page/#key={secret}")
    choose_router(page, "max-prob")
    forget(page)
    page.get_by_label("Key of the gateway").fill(secret)
    page.keyboard.press("Escape")
    the_cloud_writes(page)


def test_the_page_needs_no_name_of_the_gateways_model(tab: Page, served: str) -> None:
    """The file that anybody may read does not tell it; who has a key is told."""

    config = tab.request.get(f"{served}/page/config.json").json()
    config["gateway"] = {key: config["gateway"][key] for key in ("tokenizer", "keys")}
    tab.route("**/page/config.json", lambda route: route.fulfill(json=config))
    model = tab.request.get(f"{served}/v1/models").json()["data"][0]["id"]
    expect(show(tab, served).locator("#models")).to_contain_text(model)
    tab.route("**/v1/models", lambda route: route.abort())
    expect(show(tab, served).locator("#models")).to_contain_text("the gateway's model")


def test_a_large_model_is_announced(browser: Browser, served: str) -> None:
    """Nothing of it is loaded before somebody says so."""
    loaded: list[str] = []
    with browser.new_context(service_workers="block") as context:
        page = context.new_page()
        page.on("request", lambda one: one.url.endswith(".gguf") and loaded.append(one.url))
        config = page.request.get(f"{served}/page/config.json").json()
        config["model"]["bytes"] = 150_000_000
        page.route("**/config.json", lambda route: route.fulfill(json=config))
        page.goto(served)
        expect(page.locator("#state")).to_contain_text("150 MB")
        assert loaded == []
        page.get_by_role("button", name="Load it").press("Enter")
        # It is another file than was announced.
        expect(page.locator("#state")).to_contain_text("did not come whole", timeout=PATIENCE)


def test_several_pages_are_answered_each_on_its_own(shared: BrowserContext, served: str) -> None:
    """A consult may time out beside the others: which token that keeps is not asked here."""
    names = ["Hugo", "Cleo", "Jack", "Kim", "Mia"]
    pages = [(show(shared.new_page(), served), names[n % len(names)]) for n in range(PAGES)]
    for page, name in pages:
        share(page, 30)
        page.get_by_label("Message").fill(SUM.replace("Hugo", name))
        page.get_by_role("button", name="Send").click()
    for page, _ in pages:
        expect(page.locator(".caption")).not_to_be_empty(timeout=PATIENCE * PAGES / 5)
    told = [(page.locator(".text").evaluate(PLAIN), name) for page, name in pages]
    assert [name for text, name in told if f"{name} has" not in text] == []
    for page, _ in pages:
        page.close()


def test_memory_is_flat_over_a_hundred_answers(browser: Browser, page: Page) -> None:
    """The page's own, and that of the worker's WebAssembly."""
    session = page.context.new_cdp_session(page)

    def used() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"])

    script = """
    globalThis.held ??= { edge, gateway: new lib.Gateway(location.href, edge) };
    const { gateway } = held;
    for (let i = 0; i < 20; i++) {
      const more = { edge: held.edge, gateway, maxTokens: 16 };
      await answered(given, { threshold: 0.6, deadline: 60 }, more);
    }
    if (edge !== held.edge) await edge.close();
    """
    run(page, script, SUM)
    before, resident = used(), renderers(browser)
    for _ in range(5):
        run(page, script, SUM)
    assert used() < 1.1 * before + 1e6
    assert renderers(browser) < 1.2 * resident + 60e6


def renderers(browser: Browser) -> int:
    """Resident bytes of this browser's pages, whatever others run beside it."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    pages = [one["id"] for one in processes if one["type"] == "renderer"]
    assert pages
    sizes = [Path(f"/proc/{page}/statm").read_text().split()[1] for page in pages]
    return sum(map(int, sizes)) * os.sysconf("SC_PAGE_SIZE")


def test_everybody_can_use_it(page: Page) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for shown in ("first", "answered", "settings"):
        if shown == "answered":
            ask_both(page)
            page.locator("#sent summary").click()
        elif shown == "settings":
            page.get_by_role("button", name="Settings").click()
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                if folder := os.environ.get("SCREENSHOTS"):
                    page.screenshot(path=Path(folder) / f"browser-{shown}-{size}-{scheme}.png")
                if (size, scheme) == ("phone", "light"):
                    continue  # its colours are those of the wide one
                found = axe.Axe().run(page)
                assert found.violations_count == 0, (size, scheme, found.generate_report())
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
