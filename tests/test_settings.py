"""Settings: flag > environment > edgewise.toml > default, and what each source may not say."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import UsageError
from edgewise.settings import NAMES, Settings, load, require_honoured, settings_of, variable


def loaded(folder: Path, toml: str = "", *, flags: object = None, **environment: str) -> Settings:
    """Settings from the three sources; `flags` is a dict of flags."""
    (folder / "edgewise.toml").write_text(toml)
    assert flags is None or isinstance(flags, dict)
    return load(flags or {}, environment=environment, folder=folder)[0]


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = "span = 2\nseed = 2\nmax-tokens = 2\n"
    flags, more = {"span": 4, "deadline": None}, {"EDGEWISE_SEED": "3", "UNRELATED": "3"}
    found = loaded(tmp_path, file, flags=flags, EDGEWISE_SPAN="3", **more)
    assert (found.span, found.seed, found.max_tokens, found.ctx) == (4, 3, 2, None)
    assert found.deadline == Settings().deadline


def test_each_type_can_be_given_everywhere(tmp_path: Path) -> None:
    file = """edge = "a.gguf"
        cloud_share = 0.5
        gpu-layers = 7
        on-cloud-error = "raise"
        temperature = 1"""
    flags = {"edge": "a.gguf", "cloud_share": 0.5, "gpu_layers": "7", "on_cloud_error": "raise"}
    flags["temperature"] = 1.0
    environment = {variable(name): str(value) for name, value in flags.items()}
    expected = Settings(
        edge="a.gguf", cloud_share=0.5, gpu_layers=7, on_cloud_error="raise", temperature=1.0
    )
    assert loaded(tmp_path, file) == expected
    assert loaded(tmp_path, **environment) == expected
    assert loaded(tmp_path, flags=flags) == expected
    assert loaded(tmp_path, EDGEWISE_GPU_LAYERS="auto").gpu_layers == "auto"


UNKNOWN = "has the unknown variable 'EDGEWISE_THRESHOLDS'; did you mean 'EDGEWISE_THRESHOLD'?"


@pytest.mark.parametrize(
    ("toml", "environment", "said"),
    [
        ("spam = 1", {}, "edgewise.toml has the unknown key 'spam'; did you mean 'span'?"),
        ("", {"EDGEWISE_THRESHOLDS": "1"}, f"The environment {UNKNOWN}"),
        ("[run]\nspan = 1", {}, "edgewise.toml has the unknown key 'run'; "),
        ("zzzz = 1", {}, "edgewise.toml has the unknown key 'zzzz'; known are edge, cloud, "),
        ("span = 'two'", {}, "span in edgewise.toml is not valid: Expected `int`, got `str`."),
        ("cloud = 5", {}, "cloud in edgewise.toml is not valid: Expected `str | null`"),
        ("on-cloud-error = 'panic'", {}, "on-cloud-error in edgewise.toml is not valid: "),
        ("verify = 'yes'", {}, "verify in edgewise.toml is not valid: "),
        ("", {"EDGEWISE_SPAN": "1.5"}, "span in the environment is not valid: "),
        ("", {"EDGEWISE_TOP_P": " "}, "top-p in the environment is not valid: "),
        ("span = = 1", {}, "edgewise.toml"),
        ("threads = 0", {}, "threads in edgewise.toml is not valid: "),
        ("", {"EDGEWISE_CTX": "4294967304"}, "ctx in the environment is not valid: "),
        ("", {"EDGEWISE_GPU_LAYERS": "-2"}, "gpu-layers in the environment is not valid: "),
    ],
)
def test_what_a_source_may_not_say(
    tmp_path: Path, toml: str, environment: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, toml, **environment)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    name = said.partition(" in ")[0].replace("-", "_")
    assert (caught.value.setting == name) is (name in NAMES)


def test_a_bad_value_is_refused_even_where_a_higher_source_replaces_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"span in edgewise\.toml"):
        loaded(tmp_path, "span = 'two'", flags={"span": 1})


BOTH = {"threshold": 0.5, "cloud_share": 0.1}


def test_one_source_gives_a_threshold_or_a_share(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\(in edgewise.toml\)"):
        loaded(tmp_path, "threshold = 0.5\ncloud-share = 0.1")
    with pytest.raises(UsageError, match=r"\(in the flags\)"):
        loaded(tmp_path, flags=BOTH)
    with pytest.raises(UsageError, match=r"\(in the environment\)"):
        loaded(tmp_path, EDGEWISE_THRESHOLD="0.5", EDGEWISE_CLOUD_SHARE="0.1")


def test_of_two_sources_the_higher_decides_which(tmp_path: Path) -> None:
    found = loaded(tmp_path, "threshold = 0.5", EDGEWISE_CLOUD_SHARE="0.1")
    assert (found.threshold, found.cloud_share) == (None, 0.1)
    found = loaded(tmp_path, flags={"threshold": 0.7}, EDGEWISE_CLOUD_SHARE="0.1")
    assert (found.threshold, found.cloud_share) == (0.7, None)
    found = loaded(tmp_path, "cloud-share = 0.2", flags=None, EDGEWISE_THRESHOLD="0.5")
    assert (found.threshold, found.cloud_share) == (0.5, None)


def refusing(folder: Path, toml: str, *refused: str, **environment: str) -> Settings:
    """Settings for a command that cannot honour `refused`."""
    (folder / "edgewise.toml").write_text(toml)
    chosen, places = load({"seed": 3}, environment=environment, folder=folder)
    require_honoured(chosen, places, refused, "it")
    return chosen


def test_what_a_reader_cannot_honour_is_refused_with_its_place(tmp_path: Path) -> None:
    toml = "span = 2\nmax-tokens = 5\ntop_p = 0.3\n"
    with pytest.raises(UsageError) as caught:
        refusing(tmp_path, toml, "span", "price", "top_p", EDGEWISE_PRICE="1,1,1")
    for named in ("span in edgewise.toml", "top-p in edgewise.toml", "EDGEWISE_PRICE"):
        assert named in str(caught.value)
    assert refusing(tmp_path, toml, "price").span == 2


def test_what_a_higher_source_replaces_is_not_refused(tmp_path: Path) -> None:
    found = refusing(tmp_path, "threshold = 0.5\n", "threshold", EDGEWISE_CLOUD_SHARE="0.1")
    assert (found.threshold, found.cloud_share) == (None, 0.1)
    with pytest.raises(UsageError, match="EDGEWISE_THRESHOLD"):
        refusing(tmp_path, "cloud-share = 0.1\n", "threshold", EDGEWISE_THRESHOLD="0.5")


@given(name=st.sampled_from(NAMES))
def test_a_default_is_honoured_by_everybody(name: str) -> None:
    value = getattr(Settings(), name)
    text = {} if value is None else {variable(name): str(value)}
    nowhere = Path("/nowhere/at/all")
    chosen, places = load({}, environment=text, folder=nowhere)
    require_honoured(chosen, places, NAMES, "it")
    assert chosen == Settings()


def test_settings_given_in_python() -> None:
    assert settings_of({}) == Settings()
    assert settings_of({"span": 2, "cloud": None, "gpu_layers": 3}).gpu_layers == 3
    with pytest.raises(UsageError, match="'threads'"):
        settings_of({"thread": 1})
    with pytest.raises(UsageError, match="the arguments"):
        settings_of(BOTH)
    with pytest.raises(UsageError, match="the arguments") as caught:
        settings_of({"speculate": None})
    assert caught.value.setting == "speculate"


@pytest.mark.parametrize(("written", "share"), [("5%", 0.05), ("0.05", 0.05), (" 100 % ", 1.0)])
def test_a_share_may_be_in_percent_everywhere(tmp_path: Path, written: str, share: float) -> None:
    found = [
        loaded(tmp_path, f'cloud-share = "{written}"'),
        loaded(tmp_path, EDGEWISE_CLOUD_SHARE=written),
        loaded(tmp_path, flags={"cloud_share": written}),
        settings_of({"cloud_share": written}),
    ]
    assert [one.cloud_share for one in found] == [pytest.approx(share)] * 4


@pytest.mark.parametrize("written", ["%", "5%%", "five", "5 % of them"])
def test_what_is_no_share_is_told(written: str) -> None:
    with pytest.raises(UsageError, match=r"0\.05, or 5%"):
        settings_of({"cloud_share": written})


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    every = {f"EDGEWISE_{name.upper()}": "" for name in (*NAMES, "thresholds")}
    assert loaded(tmp_path, **every) == Settings()
    assert loaded(tmp_path, "span = 3\nedge = 'a.gguf'", **every) == Settings(span=3, edge="a.gguf")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "edgewise.toml").write_bytes("edge = 'é.gguf'\r\n".encode(encoding))
    assert load({}, environment={}, folder=tmp_path)[0].edge == "é.gguf"
    (tmp_path / "edgewise.toml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError):
        load({}, environment={}, folder=tmp_path)


def test_what_others_put_into_the_environment_is_left_alone(tmp_path: Path) -> None:
    """A service called edgewise, or edgewise-gateway, is told to every container beside it."""
    service = {
        "EDGEWISE_SERVICE_HOST": "10.0.0.1",
        "EDGEWISE_SERVICE_PORT_HTTP": "80",
        "EDGEWISE_PORT": "tcp://10.0.0.1:80",
        "EDGEWISE_PORT_80_TCP_ADDR": "10.0.0.1",
        "EDGEWISE_GATEWAY_SERVICE_HOST": "10.0.0.2",
        "EDGEWISE_GATEWAY_PORT_80_TCP": "tcp://10.0.0.2:80",
    }
    assert loaded(tmp_path, **service) == Settings()
    assert loaded(tmp_path, EDGEWISE_HELLO="world") == Settings()
