"""Layers with a sliding window in mlx-lm: caches that keep all ids instead of the window's alone.

mlx-lm's own overwrites what leaves the window, and cannot be trimmed from then on. One that keeps
all is trimmed anywhere, where the model hides what lies outside by the mask that its cache makes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

_SMALL = 3
_IDS = 8


def has_windows(layers: Sequence[Any]) -> bool:
    """Whether a layer's cache is a window's that can be kept whole."""
    return any(map(_is_window, layers))


def whole(layers: Sequence[Any]) -> list[Any]:
    """New caches that keep all ids in place of windows'."""
    return [whole_kind()(layer.max_size) if _is_window(layer) else layer for layer in layers]


def hides_by_mask(new: Callable[[], Sequence[Any]], run: Callable[[int, list[Any]], Any]) -> bool:
    """Whether both kinds of cache lead to the same logits, with windows of a few ids.

    `new` makes mlx-lm's own caches; `run` computes an id behind some, and returns its logits.
    """
    rotating = import_module("mlx_lm.models.cache").RotatingKVCache
    own = [rotating(_SMALL) if _is_window(layer) else layer for layer in new()]
    ours = whole([rotating(_SMALL) if _is_window(layer) else layer for layer in new()])
    for token in range(_IDS):
        left, right = run(token, own), run(token, ours)
        if abs(left - right).max() > 1e-2 * abs(left).max():
            return False
    return True


@cache
def whole_kind() -> Any:
    """The class of caches that keep all ids of a layer with a window."""
    kinds: Any = import_module("mlx_lm.models.cache")

    class WholeWindow(kinds.KVCache):
        def __init__(self, window: int) -> None:
            super().__init__()
            self.max_size = window

        def make_mask(
            self, count: int, *, window_size: int | None = None, return_array: bool = False
        ) -> Any:
            window = min(window_size or self.max_size, self.max_size)
            inside = self.offset + count <= window
            return super().make_mask(
                count, return_array=return_array, window_size=None if inside else window
            )

    return WholeWindow


def _is_window(layer: Any) -> bool:
    rotating = import_module("mlx_lm.models.cache").RotatingKVCache
    return type(layer) is rotating and layer.keep == 0
