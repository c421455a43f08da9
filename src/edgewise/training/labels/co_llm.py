"""The deferral head of Co-LLM."""

from edgewise.training.data import Objective
from edgewise.training.labels.mismatch import Mismatch


class CoLlm(Mismatch):
    """The tokens that the deferral head of Co-LLM (arXiv 2403.03870) starts from.

    The head itself is linear, and fitted to the marginal likelihood of the cloud's answers.
    """

    name = "co-llm"
    described = "marginal likelihood of the cloud's answer under both models"
    objective: Objective = "marginal-likelihood"
    hidden = 0
