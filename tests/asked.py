"""What tests ask the bundled pair."""

from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

HARD = next(question.prompt for question in pocketqa().questions if question.family == "two-hop")
"""What the edge model does not know, so that its router consults the cloud."""
