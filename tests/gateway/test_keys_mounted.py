"""Keys in a folder that Kubernetes mounts: a Secret's files change by the swap of a link."""

import os
import time
from pathlib import Path

from edgewise.keys.keys import CHECK_SECONDS, Keys, add_key, revoke_key


def mount(folder: Path, version: str, source: Path) -> None:
    """What a kubelet does: a new folder, a new link to it, renamed over the old one."""
    data = folder / f"..{version}"
    data.mkdir()
    (data / "keys.json").write_bytes(source.read_bytes())
    fresh = folder / "..data_tmp"
    fresh.symlink_to(data.name)
    os.replace(fresh, folder / "..data")
    named = folder / "keys.json"
    if not named.is_symlink():
        named.symlink_to("..data/keys.json")


def test_a_swapped_secret_is_read_anew(tmp_path: Path) -> None:
    source, folder = tmp_path / "source.json", tmp_path / "keys"
    folder.mkdir()
    limits = {"asks_per_second": 0.0, "tokens_per_day": 0, "sessions": 0}
    first = add_key(source, "first", **limits)  # type: ignore[arg-type]
    mount(folder, "2026_01", source)
    folder.chmod(0o555)
    keys = Keys(folder / "keys.json")
    found = keys.find(first)
    assert found is not None
    assert found.name == "first"

    second = add_key(source, "second", **limits)  # type: ignore[arg-type]
    revoke_key(source, "first")
    folder.chmod(0o755)
    mount(folder, "2026_02", source)
    folder.chmod(0o555)
    time.sleep(CHECK_SECONDS * 1.2)
    assert keys.find(first) is None
    assert keys.find_named(found) is None
    assert keys.find(second) is not None
    folder.chmod(0o755)
