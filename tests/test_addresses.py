"""Addresses against a hub on 127.0.0.1. The hub's client reads HF_* at import: one process each."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.addresses import checkpoint, local_folder, resolve, with_scheme, without_endpoint
from edgewise.edge.named import engine_at
from edgewise.errors import AddressError
from tests.hub import Hub, Repository, in_a_process, serving

FULL = b"GGUF" + bytes(range(251)) * 100_000
"""More than two of the chunks of 10 MB in which the client writes."""
ZOO = Repository(
    {
        "README.md": b"# Zoo",
        "zoo-Q8_0.gguf": b"GGUF eight",
        "zoo-Q4_K_M.gguf": b"GGUF four",
        "zoo-Q4_0_4_4.gguf": b"GGUF repacked",
        "zoo-best-of-all-F16.gguf": b"GGUF half",
        "mmproj-zoo-Q4_K_S.gguf": b"GGUF projector",
        "deep/er/zoo-q5_k_m.gguf": b"GGUF five",
    },
    tags=("v1", "refs/pr/1"),
)
REPOSITORIES = {
    "own/zoo": ZOO,
    "own/late": Repository({"b-IQ2_XS.gguf": b"GGUF b", "a-F16.gguf": b"GGUF a"}),
    "own/split": Repository(
        {f"big-Q4_K_M-{part:05d}-of-00002.gguf": b"GGUF %d" % part for part in (1, 2)}
    ),
    "own/odd": Repository({"odd-00002-of-00000.gguf": b"GGUF odd"}),
    "own/large": Repository({"large-Q4_K_M.gguf": FULL}),
    "own/weights": Repository({"model.safetensors": b"no GGUF"}),
    "own/gated": Repository({"gated-Q4_K_M.gguf": b"GGUF gated"}, gated=True),
    "own/closed": Repository({"closed-Q4_K_M.gguf": b"GGUF closed"}, private=True),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(REPOSITORIES)) as served:
        yield served


def found(home: Path, endpoint: str, *addresses: str, **more: str) -> list[str]:
    """What a fresh process resolves the addresses to; sentences of errors start with '! '."""
    return in_a_process(home, endpoint, 'str(resolve(address, "edge"))', *addresses, **more)


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


FORMS = {
    "own/zoo": "zoo-Q4_K_M.gguf",
    "own/zoo:Q8_0": "zoo-Q8_0.gguf",
    "own/zoo:q5_k_m": "zoo-q5_k_m.gguf",
    "own/zoo@v1:f16": "zoo-best-of-all-F16.gguf",
    "own/zoo@refs/pr/1:Q8_0": "zoo-Q8_0.gguf",
    "own/late": "a-F16.gguf",
    "hf://own/zoo": "zoo-Q4_K_M.gguf",
    "hf://own/zoo@v1/mmproj-zoo-Q4_K_S.gguf": "mmproj-zoo-Q4_K_S.gguf",
    "hf://own/zoo/deep/er/zoo-q5_k_m.gguf": "zoo-q5_k_m.gguf",
    "own/zoo/zoo-Q8_0.gguf": "zoo-Q8_0.gguf",
    "own/zoo/deep/er/Zoo-Q5_K_M.GGUF": "zoo-q5_k_m.gguf",
    "hf://own/zoo:Q8_0": "zoo-Q8_0.gguf",
    "hf.co/own/zoo:Q8_0": "zoo-Q8_0.gguf",
    "huggingface.co/own/zoo": "zoo-Q4_K_M.gguf",
    "https://hf.co/own/zoo:q8_0": "zoo-Q8_0.gguf",
    "https://huggingface.co/own/zoo/blob/main/deep%2Fer/zoo-q5_k_m.gguf": "zoo-q5_k_m.gguf",
    "{page}/own/zoo/": "zoo-Q4_K_M.gguf",
    "{page}/own/zoo/tree/v1": "zoo-Q4_K_M.gguf",
    "{page}/own/zoo/blob/v1/mmproj-zoo-Q4_K_S.gguf": "mmproj-zoo-Q4_K_S.gguf",
    "{page}/own/zoo/resolve/v1/zoo-Q8_0.gguf?download=true": "zoo-Q8_0.gguf",
    "own/odd": "odd-00002-of-00000.gguf",
    "own/split:Q4_K_M": "big-Q4_K_M-00001-of-00002.gguf",
}


def test_each_form_names_its_file(hub: Hub, tmp_path: Path) -> None:
    addresses = [address.format(page=hub.endpoint) for address in FORMS]
    paths = found(tmp_path, hub.endpoint, *addresses)
    assert names(paths) == [*FORMS.values()]
    assert Path(paths[0]).read_bytes() == b"GGUF four"
    assert Path(paths[0]).is_relative_to(tmp_path)
    # Of a split file every part is there.
    parts = sorted(Path(paths[-1]).parent.iterdir())
    assert [part.read_bytes() for part in parts] == [b"GGUF 1", b"GGUF 2"]


HERE = ("localhost:8080", "127.0.0.1:8080/v1", "Localhost:8080", "[::1]:8080")
ELSEWHERE = (
    *("10.0.0.0:8080", "api.example.com:8080", "127.0.0.1.example.com:8080", "localhost:model"),
    *("https://localhost:8080", "https://host/0.0.0.0:1", "owner/repo:8080", "./localhost:8080"),
)
ANY_HOST = {
    "0.0.0.0:8080": "http://127.0.0.1:8080",
    "http://0.0.0.0:8080/v1": "http://127.0.0.1:8080/v1",
    "[::]:8080": "http://[::1]:8080",
}


def test_a_cloud_on_this_device_needs_no_scheme(working: Path) -> None:
    """And no file takes its name."""
    (working / "localhost:8080").touch()
    urls = {name: f"http://{name}" for name in HERE} | ANY_HOST
    urls |= {name: name for name in ELSEWHERE}
    assert {name: with_scheme(name) for name in urls} == urls


@pytest.mark.parametrize("host", ["http://host:1", "http://completions", "https://host/api"])
def test_an_endpoint_that_was_pasted_is_no_part_of_a_servers_address(host: str) -> None:
    paths = ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions", "/v1/messages"]
    for path in [*paths, "/v1/models", "/completion", "/api/generate", "/api/chat"]:
        assert without_endpoint(host + path) == host
    assert without_endpoint(f"{host}/v1\n") == f"{host}/v1\n"
    assert without_endpoint(f"{host}/models") == f"{host}/models"


def test_folders_come_before_what_is_elsewhere(working: Path) -> None:
    """A path of three parts that is misspelled is not asked for; a scheme is no folder."""
    (working / "models").mkdir()
    with pytest.raises(AddressError, match=r"There is no file 'models/own/a\.gguf'"):
        resolve("models/own/a.gguf", "edge")
    (working / "hf:" / "own" / "zoo").mkdir(parents=True)
    assert local_folder("hf://own/zoo") is None


def test_any_part_of_a_split_file_names_it(tmp_path: Path) -> None:
    parts = [tmp_path / f"a-0000{part}-of-00002.GGUF" for part in (1, 2)]
    for part in parts:
        part.touch()
    assert resolve(str(parts[1]), "edge") == parts[0]


REFUSED = {
    "own/zoo:Q2_K": "'Q2_K'; it has deep/er/zoo-q5_k_m.gguf, zoo-Q4_0_4_4.gguf",
    "own/zoo:Q4_K": "zoo-Q8_0.gguf",
    "own/zoo:Q4_K_S": "'Q4_K_S'",
    "own/weights": "GGUF",
    "own/none": "HF_TOKEN",
    "own/zoo@v9": "'v9'",
    "hf://own/zoo/none.gguf": "'own/zoo/none.gguf'",
    "own/closed": "HF_TOKEN",
    "hf://own/closed/closed-Q4_K_M.gguf": "HF_TOKEN",
    "own/gated": "HTTP 403",
    "own/--bad--": "own/--bad--",
}
OUTSIDE = (
    *["own/../zoo", "hf://../x", "hf://own/../zoo", "hf://own/zoo/../../x.gguf", "own/zoo@../../x"],
    *["hf://own/zoo/deep/../zoo-Q8_0.gguf", "hf://own/zoo//etc/passwd", "own\\zoo", "own/zoo@"],
    *["hf://own/zoo/..\\x.gguf", "hf://own/zoo/C:\\x.gguf", "own/..", "ö/ü", "hf://", "hf://own"],
    *["hf://own/zoo@../x", "hf://own/zoo@..", "own/zoo@v1/../v1", "own/zoo:.."],
    *("hf://own/zoo/a\0b.gguf", "hf://own/zoo/a\nb.gguf", "own/zoo ", "own/z oo", "own/zoo\0"),
    "hf://own/zoo/" + "d/" * 2000 + "x.gguf",
    *(f"{start}{'x' * 5000}" for start in ("hf://own/zoo/", "own/zoo@", "own/zoo:", "own/")),
)
"""Names that lead to where no model is."""


def test_what_the_hub_refuses_or_leads_elsewhere_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    told = found(tmp_path, hub.endpoint, *REFUSED, *OUTSIDE)
    for said, words in zip(told, [*REFUSED.values(), *[""] * len(OUTSIDE)], strict=True):
        assert_one_sentence(said)
        assert words in said
    assert not hub.asked("GET", "passwd")


def assert_one_sentence(said: str) -> None:
    assert said.startswith("! "), said
    assert said.endswith(".")
    assert "\n" not in said
    assert len(said) < 1000


def test_a_token_opens_a_private_repository(hub: Hub, tmp_path: Path) -> None:
    path, missing = found(tmp_path, hub.endpoint, "own/closed", "own/none", HF_TOKEN=hub.token)
    assert Path(path).read_bytes() == b"GGUF closed"
    assert missing.startswith("! ")
    assert "'own/none'" in missing


@pytest.mark.deep
def test_what_was_downloaded_needs_no_hub(tmp_path: Path) -> None:
    """What is not there is a sentence, which names what stands in the way."""
    addresses = ["own/zoo", "own/zoo:Q4_K_M", "own/split", "hf://own/zoo@v1/zoo-Q8_0.gguf"]
    more = [*addresses, "own/late", "hf://own/zoo/zoo-q5_k_m.gguf"]
    with serving(Hub(REPOSITORIES)) as hub:
        online = found(tmp_path, hub.endpoint, *addresses)
        assert not any(path.startswith("!") for path in online)
        hub.requests.clear()
        offline = found(tmp_path, hub.endpoint, *more, HF_HUB_OFFLINE="1")
        assert not hub.requests
        told = [("HF_HUB_OFFLINE", offline)]
        for status in (503, 429):
            hub.status = status
            told.append((f"HTTP {status}", found(tmp_path, hub.endpoint, *more)))
    told.append((hub.endpoint, found(tmp_path, hub.endpoint, *more)))
    for words, (*kept, late, file) in told:
        assert kept == online
        for said in (late, file):
            assert_one_sentence(said)
            assert words in said
    (unknown,) = found(tmp_path, hub.endpoint, "own/zoo:Q5_K_M")
    assert "zoo-Q4_K_M.gguf" in unknown


UNUSABLE = {"ALL_PROXY": "socks5://[::1]:1", "HTTPS_PROXY": "ftp://x", "HF_HUB_ETAG_TIMEOUT": "a"}


@pytest.mark.deep
def test_a_variable_that_stops_the_hubs_client_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    """What was downloaded is used all the same, but where the client cannot even be imported."""
    (path,) = found(tmp_path, hub.endpoint, "own/zoo")
    for variable, value in UNUSABLE.items():
        kept, late = found(tmp_path, hub.endpoint, "own/zoo", "own/late", **{variable: value})
        assert kept == path or variable.startswith("HF_")
        assert late.startswith("! "), variable


@pytest.mark.deep
def test_a_download_that_breaks_off_is_resumed_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 1
    (path,) = found(tmp_path, hub.endpoint, "own/large")
    assert Path(path).read_bytes() == FULL
    first, second = (request.start for request in hub.asked("GET", "/resolve/"))
    assert first is None
    assert second is not None
    assert len(FULL) // 3 < second <= len(FULL) // 2
    # What is there is not asked for again.
    assert found(tmp_path, hub.endpoint, "own/large") == [path]
    assert len(hub.asked("GET", "/resolve/")) == 2


@pytest.mark.deep
def test_a_download_that_never_ends_well_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 99
    (said,) = found(tmp_path, hub.endpoint, "own/zoo")
    assert said.startswith("! ")
    assert "'own/zoo'" in said
    hub.cuts = 0
    (path,) = found(tmp_path, hub.endpoint, "own/zoo")
    assert Path(path).read_bytes() == b"GGUF four"


# As on a full disk, a write fails.
SMALL_DISK = """[
    __import__("resource").setrlimit(__import__("resource").RLIMIT_FSIZE, (1 << 19, 1 << 19)),
    str(resolve(address, "edge")),
][1]"""


@pytest.mark.deep
@pytest.mark.skipif(os.name == "nt", reason="has no such limit")
def test_a_disk_that_takes_no_download_is_named_and_not_the_hub(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with serving(Hub({"own/zoo": Repository({"a-F16.gguf": b"GGUF" + bytes(1 << 20)})})) as hub:
        said = in_a_process(tmp_path, hub.endpoint, SMALL_DISK, "own/zoo")
        said += found(tmp_path / "file", hub.endpoint, "own/zoo")
        for one in said:
            assert_one_sentence(one)
            assert "HF_HOME" in one
            assert hub.endpoint not in one
        # With room it is there.
        assert names(found(tmp_path, hub.endpoint, "own/zoo")) == ["a-F16.gguf"]


@pytest.mark.parametrize(
    "address",
    ["./none.gguf", "none.gguf", "/none/at/all", "~nobody-at-all/m.gguf", "", "x" * 5000, "a\0b"],
)
@pytest.mark.parametrize("role", ["edge", "cloud"])
def test_a_path_that_does_not_exist_is_a_sentence_with_its_setting(address: str, role: str) -> None:
    with pytest.raises(AddressError) as caught:
        resolve(address, role)  # type: ignore[arg-type]
    assert caught.value.setting == role
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    "name", ["own/zoo", "own/zoo@v1", "own/zoo:Q8_0", "smollm2", "ollama:qwen3:0.6b", "lmstudio:a"]
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_lies_here_takes_no_name_of_what_is_elsewhere(
    working: Path, name: str, kind: str
) -> None:
    """Whoever fills a working folder would decide which model, or which router's code, runs."""
    path = working / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"GGUF") if kind == "file" else path.mkdir()
    for find in (lambda: resolve(name, "edge"), lambda: engine_at(name)):
        with pytest.raises(AddressError, match=r"\./"):
            find()
    if kind == "file":
        assert resolve(f"./{name}", "edge") == Path(name)
        assert resolve(str(path), "cloud") == path
        return
    with pytest.raises(AddressError, match=r"\./"):
        checkpoint(name)
    assert checkpoint(f"./{name}") == Path(name)


LISTINGS: list[object] = [
    *([], 7, {}, {"id": 3, "siblings": 4}),
    {"id": "own/zoo", "siblings": [{"rfilename": 5}]},
    {"id": "own/zoo", "siblings": [7]},
    {"id": "own/zoo", "siblings": [{"rfilename": "x-00001-of-99999.gguf"}]},
    {"id": "own/zoo", "siblings": [{"rfilename": "x" * 100_000 + ".gguf"}]},
    {"id": "own/zoo", "lastModified": "never", "siblings": []},
]


def test_a_listing_that_is_none_or_leads_elsewhere(tmp_path: Path) -> None:
    """Is a sentence; of another file the listing may have more."""
    odd = {f"own/odd{n}": replace(ZOO, listing=listing) for n, listing in enumerate(LISTINGS)}
    outside = ("../out-Q4_K_M.gguf", "/out-Q4_K_M.gguf", "a/../../out-Q4_0.gguf", "..\\o-Q4_0.gguf")
    files = dict.fromkeys(outside, b"GGUF out")
    more = {"own/bad": Repository(files), "own/mixed": Repository({**files, **ZOO.files})}
    with serving(Hub({**odd, **more})) as hub:
        forms = [form for name in odd for form in (name, f"{name}:Q8_0")]
        *said, bad, mixed = found(tmp_path, hub.endpoint, *forms, *more)
    for one in (*said, bad):
        assert_one_sentence(one)
    assert "'own/bad'" in bad
    assert Path(mixed).read_bytes() == b"GGUF four"
    assert not list(tmp_path.rglob("*out-*"))


LEADING = (
    {"ETag": '"../../../out"'},
    {"ETag": '"{outside}/out"'},
    {"X-Linked-Etag": '"../../../out"'},
    {"X-Repo-Commit": "../../../out"},
    {"X-Repo-Commit": "{outside}/out"},
)
"""Of which a client would make a path."""
PLACES = ("/own/zoo/resolve/main/zoo-Q8_0.gguf", "file:///etc/passwd", "http://[", "//")
LIES = (
    *LEADING,
    *({"Content-Length": size} for size in ("3", "999999", "-1", "many")),
    *({"X-Linked-Size": size} for size in ("1", "9" * 20, "-5", "many")),
    *({"ETag": ""}, {"X-Repo-Commit": ""}, {"Content-Encoding": "gzip"}),
    *({"Location": place} for place in PLACES),
)


@pytest.mark.deep
def test_headers_that_lie_end_in_a_sentence_or_in_the_caches_folder(tmp_path: Path) -> None:
    """However many replies were honest before: what is checked is what is acted on."""
    home = tmp_path / "a" / "b" / "home"
    home.mkdir(parents=True)
    told = [(lies, 0) for lies in LIES] + [(lies, n) for lies in LEADING for n in (1, 2)]
    liars: dict[str, Repository] = {}
    for number, (lies, honest) in enumerate(told):
        said = {name: one.replace("{outside}", str(tmp_path)) for name, one in lies.items()}
        liars[f"own/liar{number}"] = replace(ZOO, lies=said, honest=honest)
    asked = [one for name in liars for one in (f"{name}:Q8_0", f"hf://{name}/none.gguf")]
    with serving(Hub({**REPOSITORIES, **liars})) as hub:
        answers = found(home, hub.endpoint, *asked, HF_HUB_DOWNLOAD_TIMEOUT="2")
    for said in answers:
        if said.startswith("! "):
            assert_one_sentence(said)
        else:
            assert Path(said).resolve().is_relative_to(home)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
    assert not outside


@pytest.mark.parametrize("zipped", [False, True])
def test_a_listing_has_a_bound(hub: Hub, tmp_path: Path, zipped: bool) -> None:
    hub.bomb, hub.zipped = 200 << 20, zipped
    (said,) = found(tmp_path, hub.endpoint, "own/zoo")
    assert said.startswith("! ")
    assert "reply" in said
    if not zipped:
        assert hub.sent < 100 << 20


def test_a_snapshot_that_leads_out_of_the_cache_is_refused(hub: Hub, tmp_path: Path) -> None:
    (path,) = found(tmp_path / "home", hub.endpoint, "own/zoo:Q8_0")
    (tmp_path / "secret").write_bytes(b"GGUF")
    Path(path).unlink()
    Path(path).symlink_to(tmp_path / "secret")
    (said,) = found(tmp_path / "home", hub.endpoint, "own/zoo:Q8_0")
    assert said.startswith("! ")
    assert str(tmp_path / "secret") in said
