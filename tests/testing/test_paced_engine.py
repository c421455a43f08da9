"""A paced engine is the engine behind it, but slower."""

from contextlib import closing

import httpx

from tests.doubles.paced_engine import PacedEngine
from tests.doubles.scripted_engine import ScriptedEngine


def test_replies_pass_through_unchanged_and_are_counted(engine: ScriptedEngine) -> None:
    asked = {"prompt": [*b"sky: "], "n_predict": 3, "cache_prompt": False}
    bodies = [asked, {**asked, "stream": True}, {"prompt": 7}]
    with closing(PacedEngine(engine.url)) as paced, httpx.Client() as http:
        for body in bodies:
            urls = (paced.url, engine.url)
            here, there = (http.post(f"{url}/completion", json=body) for url in urls)
            assert (here.status_code, here.content) == (there.status_code, there.content)
        assert http.get(f"{paced.url}/health").status_code == 200
        assert paced.asked == 2
