"""The deferral head of Co-LLM."""

from edgewise_lab.training.collect import Text
from edgewise_lab.training.data import Objective
from edgewise_lab.training.labels.base import Case, Label, Labelling


class CoLlm(Label):
    """The deferral head of Co-LLM (arXiv 2403.03870): linear, the edge model's weights frozen.

    As published: the marginal likelihood of the text under both models, along the reference that
    comes with a question, and what the head starts from, cross-entropy with positives eight times
    as heavy. These values are its labels: 1 where the cloud would write the text's token and the
    edge would not.

    Not as published: the edge model is not trained along with the head; the head reads the inputs
    that are asked for (there: the hidden state alone); the end token is no part of a reference;
    and a task without references is learnt from the cloud's own answers, where the cloud is right
    at every token.
    """

    name = "co-llm"
    described = "marginal likelihood of the text under both models"
    text: Text = "target"
    objective: Objective = "marginal-likelihood"
    hidden = 0

    def of(self, case: Case) -> Labelling:
        yield from ()
        ids = case.sample.ids
        cloud = case.sample.cloud or ids
        both = zip(ids, case.proposed, cloud, strict=True)
        return [float(edge != token == other) for token, edge, other in both]
