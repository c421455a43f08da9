"""The page's files: what is vendored, what is recorded, and that they come with the package."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from edgewise.events import Token
from edgewise.pair import open_pair
from edgewise.settings import Settings
from pocket.recordings import CANNED, MODELS, answer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "edgewise" / "server" / "page"
LISTED = msgspec.json.decode((PAGE / "vendor" / "vendor.json").read_bytes())


@pytest.mark.parametrize("entry", LISTED, ids=lambda one: one["file"])
def test_a_library_is_what_is_listed(entry: dict[str, str]) -> None:
    text = (PAGE / "vendor" / entry["file"]).read_bytes()
    assert hashlib.sha256(text).hexdigest() == entry["sha256"]
    assert (PAGE / "vendor" / f"LICENSE.{entry['package']}").exists()
    notice = (ROOT / "NOTICE").read_text()
    assert f"{entry['package']} {entry['version']} ({entry['licence']})" in notice
    # Nothing else is there.
    files = {one["file"] for one in LISTED} | {f"LICENSE.{one['package']}" for one in LISTED}
    assert {path.name for path in (PAGE / "vendor").iterdir()} == files | {"vendor.json"}


def test_recordings_are_what_the_bundled_pair_writes() -> None:
    with open_pair(Settings()) as pair:
        for canned in CANNED:
            trace = msgspec.json.decode((PAGE / "traces" / f"{canned.name}.json").read_bytes())
            for model in MODELS:
                chunks = [chunk.get("edgewise", {}) for _, chunk in trace["answers"][model]]
                told = [chunk["token"] for chunk in chunks if "token" in chunk]
                found = [
                    event
                    for _, event in answer(pair, trace["prompt"], model, paced=False)
                    if isinstance(event, Token)
                ]
                assert [(one.id, one.source, one.reason) for one in found] == [
                    (one["id"], one["source"], one["reason"]) for one in told
                ]
                assert [len(one.edge) for one in found] == [len(one["edge"]) for one in told]


def test_the_first_screen_lists_what_is_recorded() -> None:
    listed = msgspec.json.decode((PAGE / "traces" / "index.json").read_bytes())
    assert [one["name"] for one in listed] == [canned.name for canned in CANNED]
    assert {path.stem for path in (PAGE / "traces").iterdir()} == {
        "index",
        *(canned.name for canned in CANNED),
    }
    assert len({one["family"] for one in listed}) >= 3
