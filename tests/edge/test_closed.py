"""A model that is closed says so; nobody reaches into what was freed."""

import threading
from collections.abc import Callable

import pytest

from edgewise import Pair
from edgewise.addresses import bundled
from edgewise.edge.base import Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import StaleStepError, UsageError


@pytest.mark.parametrize(
    "use",
    [
        lambda tokenizer: tokenizer.encode("copper"),
        lambda tokenizer: tokenizer.encode_prompt("copper"),
        lambda tokenizer: tokenizer.piece(40),
        lambda tokenizer: tokenizer.special_text("eos"),
        lambda tokenizer: tokenizer.special,
        lambda tokenizer: tokenizer.bos_id,
    ],
)
def test_a_closed_model_s_vocabulary_is_refused(use: Callable[[object], object]) -> None:
    model = LlamaModel(bundled("edge"), threads=1)
    model.close()
    with pytest.raises(UsageError, match="closed"):
        use(model.tokenizer)


def test_a_closed_pair_is_a_sentence() -> None:
    pair = Pair("bundled", threads=1)
    pair.close()
    for use in (lambda: pair.ask("x"), lambda: pair.prompt("x"), lambda: pair.ask([1, 2])):
        with pytest.raises(UsageError, match="closed"):
            use()


def test_closing_while_others_tokenise_and_decode_ends_in_sentences() -> None:
    for _ in range(4):
        model = LlamaModel(bundled("edge"), threads=1, slots=3)
        started = threading.Barrier(4)
        said: list[str] = []

        def work(
            model: LlamaModel = model,
            started: threading.Barrier = started,
            said: list[str] = said,
        ) -> None:
            session = model.session(Needs.LOGITS)
            started.wait()
            try:
                while True:
                    session.open(model.tokenizer.encode("Tell me about copper and zinc. " * 3))
                    model.tokenizer.piece(session.step().proposed)
                    session.rewind(0)
            except UsageError as error:
                said.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        model.close()
        for thread in threads:
            thread.join(60)
        assert len(said) == 3
        assert all("closed" in one for one in said)


def test_views_are_stale_once_the_model_is_closed() -> None:
    model = LlamaModel(bundled("edge"), threads=1)
    session = model.session()
    session.open(model.tokenizer.encode("copper"))
    step = session.step()
    model.close()
    with pytest.raises(StaleStepError):
        _ = step.logits
