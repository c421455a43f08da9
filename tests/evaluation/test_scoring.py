"""How likely a text is: no id of which nothing is known counts as certain."""

from itertools import chain, pairwise

import pytest

from edgewise.edge.scoring import MOST, Scored, scored
from edgewise.errors import UsageError
from edgewise.events import Candidate
from edgewise.testing.scripted_edge import ScriptedEdge, noise
from edgewise_lab.evaluation.statistics import likelihood

IDS = [*range(40, 50)]


def by_steps(model: ScriptedEdge, ids: list[int]) -> list[tuple[float, bool]]:
    session = model.session()
    found: list[tuple[float, bool]] = []
    for one, following in pairwise(ids):
        session.extend([one])
        step = session.step()
        found.append((step.logprob(following), step.proposed == following))
    return found


@pytest.mark.parametrize("start", [1, 4, len(IDS)])
def test_what_stands_behind_a_text_is_summed(start: int) -> None:
    model = ScriptedEdge(noise())
    wanted = by_steps(model, IDS)[start - 1 :]
    scores = [*chain(*scored(model, IDS, start=start))]
    found, greedy = likelihood(scores)
    assert found == pytest.approx(sum(one for one, _ in wanted))
    assert greedy == all(best for _, best in wanted)


def test_a_text_that_the_model_would_write_is_greedy() -> None:
    model = ScriptedEdge(noise())
    ids = list(IDS)
    session = model.session()
    session.open(ids)
    for _ in range(MOST + 3):
        ids.append(session.step().proposed)
        session.extend(ids[-1:])
    assert likelihood([*chain(*scored(model, ids, start=len(IDS)))])[1]
    ids[-1] ^= 1
    assert not likelihood([*chain(*scored(model, ids, start=len(IDS)))])[1]


def test_an_id_of_which_nothing_is_known_is_refused() -> None:
    """The first of all, as of a model of one's own that does not say."""
    scores = [*chain(*scored(ScriptedEdge(noise()), IDS))]
    assert scores[0].logprob is None
    with pytest.raises(UsageError, match="token 40"):
        likelihood(scores)
    with pytest.raises(UsageError, match="token 7"):
        likelihood([Scored(7, -0.5, (Candidate(7, -0.5),)), Scored(7, -0.5)])
