"""What a session's KV cache holds of the ids that are wanted."""

from collections.abc import Sequence


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids both begin with."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
