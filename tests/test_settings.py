"""Settings: flag > environment > edgewise.toml > default, and what each source may not say."""

from pathlib import Path

import pytest

from edgewise.errors import UsageError
from edgewise.settings import Settings, load


def loaded(folder: Path, toml: str = "", *, flags: object = None, **environment: str) -> Settings:
    """Settings from the three sources; `flags` is a dict of flags."""
    (folder / "edgewise.toml").write_text(toml)
    assert flags is None or isinstance(flags, dict)
    return load(flags or {}, environment=environment, folder=folder)


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    assert load({}, environment={}, folder=tmp_path) == Settings()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = "span = 2\nseed = 2\nmax-tokens = 2\n"
    found = loaded(
        tmp_path,
        file,
        flags={"span": 4, "deadline": None},
        EDGEWISE_SPAN="3",
        EDGEWISE_SEED="3",
        UNRELATED="3",
    )
    assert (found.span, found.seed, found.max_tokens, found.ctx) == (4, 3, 2, None)
    assert found.deadline == Settings().deadline


def test_each_type_can_be_given_everywhere(tmp_path: Path) -> None:
    file = (
        'edge = "a.gguf"\ncloud_share = 0.5\ngpu-layers = 7\non-cloud-error = "raise"\n'
        "temperature = 1\n"
    )
    by_file = loaded(tmp_path, file)
    by_environment = loaded(
        tmp_path,
        EDGEWISE_EDGE="a.gguf",
        EDGEWISE_CLOUD_SHARE="0.5",
        EDGEWISE_GPU_LAYERS="7",
        EDGEWISE_ON_CLOUD_ERROR="raise",
        EDGEWISE_TEMPERATURE="1",
    )
    flags = {"edge": "a.gguf", "cloud_share": 0.5, "gpu_layers": "7", "on_cloud_error": "raise"}
    by_flags = loaded(tmp_path, flags={**flags, "temperature": 1.0})
    assert by_file == by_environment == by_flags
    assert by_flags.gpu_layers == 7
    assert by_flags.temperature == 1.0
    assert loaded(tmp_path, EDGEWISE_GPU_LAYERS="auto").gpu_layers == "auto"


def test_the_key_comes_from_the_environment(tmp_path: Path) -> None:
    assert loaded(tmp_path, EDGEWISE_CLOUD_KEY="sk-1").cloud_key == "sk-1"


@pytest.mark.parametrize(
    ("toml", "environment", "said"),
    [
        ("spam = 1", {}, "edgewise.toml has the unknown key 'spam'; did you mean 'span'?"),
        (
            "",
            {"EDGEWISE_THRESHOLDS": "1"},
            "The environment has the unknown variable 'EDGEWISE_THRESHOLDS'; "
            "did you mean 'threshold'?",
        ),
        ("[run]\nspan = 1", {}, "edgewise.toml has the unknown key 'run'; "),
        ("zzzz = 1", {}, "edgewise.toml has the unknown key 'zzzz'; known are edge, cloud, "),
        (
            "span = 'two'",
            {},
            "span in edgewise.toml is not valid: Expected `int`, got `str`.",
        ),
        ("cloud = 5", {}, "cloud in edgewise.toml is not valid: Expected `str | null`"),
        ("on-cloud-error = 'panic'", {}, "on-cloud-error in edgewise.toml is not valid: "),
        ("", {"EDGEWISE_SPAN": "1.5"}, "span in the environment is not valid: "),
        ("", {"EDGEWISE_TOP_P": ""}, "top-p in the environment is not valid: "),
        ("span = = 1", {}, "edgewise.toml is no valid TOML: "),
        ("threads = 0", {}, "threads must be from 1 to 512, not 0."),
        ("", {"EDGEWISE_CTX": "4294967304"}, "ctx must be from 8 to 16777216, not 4294967304."),
        ("", {"EDGEWISE_GPU_LAYERS": "-2"}, "gpu-layers must be from -1 to "),
    ],
)
def test_what_a_source_may_not_say(
    tmp_path: Path, toml: str, environment: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, toml, **environment)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_bad_value_is_refused_even_where_a_higher_source_replaces_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"span in edgewise\.toml"):
        loaded(tmp_path, "span = 'two'", flags={"span": 1})


def test_a_file_in_another_encoding_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_bytes(b"system = '\xff'")
    with pytest.raises(UsageError, match="no valid TOML"):
        load({}, environment={}, folder=tmp_path)


BOTH = {"threshold": 0.5, "cloud_share": 0.1}


@pytest.mark.parametrize(
    ("toml", "flags", "environment", "where"),
    [
        ("threshold = 0.5\ncloud-share = 0.1", {}, {}, "edgewise.toml"),
        ("", BOTH, {}, "the flags"),
        ("", {}, {"EDGEWISE_THRESHOLD": "0.5", "EDGEWISE_CLOUD_SHARE": "0.1"}, "the environment"),
    ],
)
def test_one_source_gives_a_threshold_or_a_share(
    tmp_path: Path,
    toml: str,
    flags: dict[str, object],
    environment: dict[str, str],
    where: str,
) -> None:
    with pytest.raises(UsageError, match=rf"not both \(in {where}\)"):
        loaded(tmp_path, toml, flags=flags, **environment)


def test_of_two_sources_the_higher_decides_which(tmp_path: Path) -> None:
    found = loaded(tmp_path, "threshold = 0.5", EDGEWISE_CLOUD_SHARE="0.1")
    assert (found.threshold, found.cloud_share) == (None, 0.1)
    found = loaded(tmp_path, flags={"threshold": 0.7}, EDGEWISE_CLOUD_SHARE="0.1")
    assert (found.threshold, found.cloud_share) == (0.7, None)
    found = loaded(tmp_path, "cloud-share = 0.2", flags=None, EDGEWISE_THRESHOLD="0.5")
    assert (found.threshold, found.cloud_share) == (0.5, None)
