"""Blocks are left out of a model as a whole, and the questions are what they say they are."""

import re
from collections import defaultdict
from pathlib import Path

import gguf
import numpy as np

from benchmarks.real_weights.questions import RELATIONS, SPLITS, tasks
from benchmarks.real_weights.weights import without_blocks
from edgewise.addresses import bundled

CLOUD = bundled("cloud")


def contents(path: Path) -> tuple[dict[str, object], dict[str, gguf.ReaderTensor]]:
    """Metadata and tensors of a file."""
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def test_blocks_that_stay_are_the_same_and_those_left_out_are_gone(tmp_path: Path) -> None:
    fields, tensors = contents(CLOUD)
    cut_fields, cut = contents(without_blocks(CLOUD, tmp_path / "edge.gguf", [1]))
    blocks = fields.pop("llama.block_count")
    assert isinstance(blocks, int)
    assert cut_fields.pop("llama.block_count") == blocks - 1
    for described in (fields, cut_fields):
        described.pop("GGUF.tensor_count")
    assert cut_fields == fields

    came_from = {0: 0, **{block: block + 1 for block in range(1, blocks - 1)}}
    for name, tensor in cut.items():
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        whole = tensors[f"blk.{came_from[int(found[1])]}.{found[2]}" if found else name]
        assert tensor.tensor_type == whole.tensor_type
        assert np.array_equal(tensor.data, whole.data)
    a_block = sum(name.startswith("blk.1.") for name in tensors)
    assert len(cut) == len(tensors) - a_block


def test_new_rows_are_in_no_other_split_and_seen_ones_in_training_only() -> None:
    rows: dict[str, set[str]] = defaultdict(set)
    tables = {relation.name: relation.table for relation in RELATIONS}
    for split in SPLITS:
        for question in tasks(split).questions:
            relation, row, _ = question.id.split(":")
            row = f"{tables[relation]}:{row}"
            rows["seen" if question.family == "seen" else split].add(row)
    assert not rows["test"] & (rows["train"] | rows["calibration"])
    assert not rows["train"] & rows["calibration"]
    assert rows["seen"] <= rows["train"]
