"""A pair as a model of the LM Evaluation Harness, which must be installed to import this."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any, cast

from edgewise.edge.scoring import Scored, scored
from edgewise.errors import UsageError
from edgewise.pair import AnswerOptions, Pair
from edgewise.prompts import Message, render
from edgewise_lab.evaluation.statistics import likelihood

_api: Any = import_module("lm_eval.api.model")
_models: Any = import_module("lm_eval.models.utils")
_utils: Any = import_module("lm_eval.utils")

_DRAWS = ("temperature", "top_k", "top_p", "min_p", "seed")
_log = logging.getLogger(__name__)


class HarnessModel(_api.TemplateLM):
    """`--model edgewise`: answers of the pair, log-likelihoods of one of its models."""

    def __init__(
        self,
        *,
        logprobs: str | None = None,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: object = None,
        **settings: Any,
    ) -> None:
        """`settings` are a `Pair`'s keywords; `logprobs` says whose ("edge" or "cloud").

        The harness sends a `device` unasked; where layers lie is said by `gpu_layers`. Raises
        `UsageError`.
        """
        super().__init__()
        if logprobs not in (None, "edge", "cloud"):
            raise UsageError(f"logprobs may be edge or cloud, not {logprobs!r}.")
        if batch_size not in (None, 1, "1") or max_batch_size is not None:
            raise UsageError("Answers are written one at a time", hint="leave the batch size out")
        if "cloud" in settings and settings["cloud"] is None:
            # The harness reads the word as nothing given.
            settings["cloud"] = "none"
        self._pair = Pair(keep_prefixes=True, **settings)
        self._whose, self._longest = logprobs, int(max_gen_toks)
        self._vocabulary = self._pair.edge.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches."""
        return f"edgewise-{self._pair.edge.name}"

    @property
    def max_length(self) -> int:
        """Ids of a context."""
        return self._pair.edge.context

    @property
    def eot_token_id(self) -> int:
        """The id that ends an answer."""
        eos = self._special("eos")
        return min(self._vocabulary.eos_ids) if eos is None else eos

    @property
    def prefix_token_id(self) -> int:
        """What a text without context stands behind: BOS where there is one."""
        bos = self._special("bos")
        return self.eot_token_id if bos is None else bos

    def _special(self, name: str) -> int | None:
        text = self._vocabulary.special_text(name)
        return self._vocabulary.encode(text, special=True)[0] if text else None

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: object
    ) -> list[int]:
        """Ids, behind a BOS where the model wants one, unless another is wanted."""
        if add_special_tokens is False:
            return self._vocabulary.encode(string, special=True)
        return self._vocabulary.encode_prompt(string)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The edge model's own, where one is wanted."""
        return self._vocabulary.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation; without `add_generation_prompt` the last turn is begun."""
        if self._vocabulary.chat_template is None:
            raise UsageError(
                f"{self._pair.edge.name!r} has no chat template", hint="ask without one"
            )
        begun = "" if add_generation_prompt else chat_history[-1]["content"]
        turns = chat_history if add_generation_prompt else chat_history[:-1]
        messages = [Message(cast(Any, turn["role"]), turn["content"]) for turn in turns]
        return render(self._vocabulary, messages) + begun

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers of the pair."""
        return [self._answer(request) for request in self._shown(requests, disable_tqdm)]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Of whole texts, in windows where they are longer than a context."""
        found: list[float] = []
        for request in self._shown(requests, disable_tqdm):
            (text,) = request.args
            windows = _utils.get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            parts = [(None, *_utils.make_disjoint_window(window)) for window in windows]
            total = sum(one for one, _ in self._loglikelihood_tokens(parts, disable_tqdm=True))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            found.append(total)
        return found

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        *,
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Sums of the continuations' logprobs, and whether each is what greedy decoding writes."""
        found: list[tuple[float, bool]] = []
        for key, context, continuation in self._shown(requests, disable_tqdm):
            ids = self._fitting([*context, *continuation], self.max_length)
            outcome = likelihood(self._scores(ids, len(ids) - len(continuation)))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, outcome)
            found.append(outcome)
        return found

    def _scores(self, ids: Sequence[int], start: int) -> list[Scored]:
        if start < 1:
            raise UsageError(f"A continuation has more than {self.max_length - 1} tokens.")
        edge, cloud = self._pair.edge, self._pair.cloud
        whose = self._whose or ("edge" if cloud is None or not self._pair.policy.asks else None)
        if whose is None:
            raise UsageError(
                "Log-likelihoods are those of one model, and a pair is two",
                hint="add logprobs=edge or logprobs=cloud to the model's arguments",
            )
        if whose == "edge":
            batches = scored(edge, ids, start=start)
        else:
            batches = self._pair.both()[1].scored(ids, start=start)
        with closing(batches):
            return [one for batch in batches for one in batch]

    def _answer(self, request: Any) -> str:
        context, given = request.args
        wishes = dict(_models.normalize_gen_kwargs(given, self._longest))
        stop, most = wishes.pop("until"), wishes.pop("max_gen_toks")
        if wishes.pop("do_sample") is False:
            wishes["temperature"] = 0.0
        for name in wishes:
            if name not in _DRAWS:
                raise UsageError(f"The task asks for {name}, which is not supported.")
        room = self.max_length - min(most, self.max_length // 2)
        ids = self._fitting(self.tok_encode(context), room)
        wishes |= {"max_tokens": most, "stop": [one for one in stop if one]}
        text = self._pair.ask(ids, **cast(AnswerOptions, wishes)).text
        self.cache_hook.add_partial("generate_until", request.args, text)
        return text

    def _fitting(self, ids: list[int], most: int) -> list[int]:
        """The last ones, as the harness's other models do it."""
        if len(ids) > most:
            _log.warning("%d tokens do not fit in %d; the first are left out", len(ids), most)
        return ids[-most:]

    def _shown(self, requests: Sequence[Any], hidden: bool) -> Iterable[Any]:
        return import_module("tqdm").tqdm(requests, disable=hidden)
