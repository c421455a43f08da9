"""Rollouts of a pair: the mixed policy that writes the texts of a label's later rounds."""

from collections.abc import Sequence

from edgewise.loop.decoder import Decoder
from edgewise_lab.rollouts.base import Continuation, Done, Prefix, ignore


class PairRollouts:
    """Implements `Rollouts` with a decoder, one prefix after the other."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def run(self, prefixes: Sequence[Prefix], done: Done = ignore) -> list[Continuation]:
        written: list[Continuation] = []
        for index, prefix in enumerate(prefixes):
            answer = self._decoder.generate(
                prefix.ids, max_tokens=prefix.n, sampling=prefix.sampling
            )
            ids = tuple(token.id for token in answer.tokens)
            written.append(Continuation(ids, tuple(token.logprob for token in answer.tokens)))
            done(index, written[-1])
        return written

    def close(self) -> None:
        """The decoder holds nothing between answers."""
