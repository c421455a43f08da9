"""Test doubles, also for plugins: a scripted edge and cloud model, and an emulated link."""

from edgewise.testing.link import Link, Quality
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, ScriptedEdge, noise, replying

__all__ = ["ByteTokenizer", "Link", "Quality", "ScriptedCloud", "ScriptedEdge", "noise", "replying"]
