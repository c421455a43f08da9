"""Outcomes of nobody's answers."""

from typing import Any

from edgewise_lab.evaluation.systems import Outcome


def outcome(question: object = "q", *, right: bool = True, **more: Any) -> Outcome:
    """Ten tokens of the family f in a second, strictly right if right, unless `more` says so."""
    usual = {"family": "f", "text": "", "strict": right, "output_tokens": 10, "seconds": 1.0}
    return Outcome(question=str(question), right=right, **(usual | more))
