"""The door for edge engines: a package adds one, and it answers."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from edgewise.edge.base import EdgeOptions
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import EDGES, engine_at
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.opening import open_edge, open_router
from edgewise.settings import Settings
from edgewise_lab.rollouts import Prefix, local_rollouts
from tests.installed import install

ENGINE = '''
"""An edge engine as a package would bring it: what it has, and no more."""

from edgewise.edge.base import EdgeAbilities, EdgeModel, Needs
from edgewise.edge.kv import KvSession, Slots
from edgewise.edge.sequence import KvRow, SequenceCache
from edgewise.testing.scripted_edge import ByteTokenizer, replying


class Cells(SequenceCache):
    rewinds = "anywhere"

    def __init__(self, script):
        self.script = script
        super().__init__()

    def _begin(self):
        pass

    def _compute(self, ids, outputs, *, hidden):
        return [] if outputs == "none" else [KvRow(self.script([*self.ids, *ids]))]

    def _back(self, count, state):
        return True


class Echo(EdgeModel):
    tokenizer = ByteTokenizer()
    abilities = EdgeAbilities(hidden=False, batch_logits=False, slots=4)
    hidden_size = 0

    def __init__(self, address, options):
        self.name, self.options = address, options
        self.context = options.context or 64
        script = replying(address.partition(":")[2], prompt="say: ")
        self.slots = Slots([Cells(script) for _ in range(4)], name=self.name)

    @staticmethod
    def claims(files):
        return "own" if "echo.txt" in files.names else None

    def session(self, needs=Needs.NOTHING, *, top=0):
        return KvSession(self, self.slots, needs, top)

    def fingerprint(self):
        return self.name

    def close(self):
        pass
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path that adds the engine `echo`, and one that cannot be loaded."""
    (tmp_path / "echo_engine.py").write_text(ENGINE)
    points = ("echo = echo_engine:Echo", "broken = echo_engine:Nothing")
    install(tmp_path, "echo_engine", *points, group="edgewise.edge")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "echo_engine", raising=False)
    return tmp_path / "echo_engine-1.0.dist-info"


ECHO = Settings(edge="echo:grey sky", edge_engine="echo", cloud="none", ctx=48, threads=2)


@pytest.mark.usefixtures("installed")
class TestAnEngineOfAPackage:
    def test_it_answers(self) -> None:
        """It gets the address and the options as they are; what it left out has a default."""
        edge = open_edge(ECHO, slots=3, keep_prefixes=True)
        wanted = EdgeOptions(context=48, threads=2, slots=3, keep_prefixes=True)
        assert edge.options == wanted  # type: ignore[attr-defined]
        assert (edge.name, edge.context) == ("echo:grey sky", 48)
        assert (edge.parameters, edge.build) == (None, "")
        router, card = open_router(ECHO, edge)
        assert card is None
        decoder = Decoder(edge, router=router, policy=Policy(threshold=1.0))
        assert decoder.generate(list(b"say: ")).text == "grey sky"
        with closing(local_rollouts(edge)) as rollouts:
            (written,) = rollouts.run([Prefix(tuple(b"say: "), 4)])
            assert bytes(written) == b"grey"

    def test_it_is_named_beside_the_built_in_one(self) -> None:
        built_in = ["llamacpp", "mlx", "onnx", "server", "transformers"]
        assert EDGES.names() == ["broken", "echo", *built_in]
        with pytest.raises(UsageError, match="broken, echo"):
            open_edge(Settings(edge_engine="none"))

    def test_one_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        """Nor can it be asked for the files that it claims."""
        for settings in (Settings(edge_engine="broken"), Settings(edge=str(tmp_path))):
            with pytest.raises(UsageError, match="echo_engine:Nothing"):
                open_edge(settings)

    def test_files_that_its_class_claims_choose_it(self, installed: Path, tmp_path: Path) -> None:
        (installed / "entry_points.txt").write_text("[edgewise.edge]\necho = echo_engine:Echo\n")
        folder = tmp_path / "model"
        folder.mkdir()
        for name in ("echo.txt", "config.json", "model.safetensors"):
            (folder / name).write_text("{}")
        assert engine_at(str(folder)) == "echo"  # rather than transformers, which reads many
        (folder / "genai_config.json").write_text("{}")
        with pytest.raises(UsageError, match="echo, onnx") as caught:
            engine_at(str(folder))
        assert caught.value.setting == "edge_engine"

    def test_the_built_in_one_cannot_be_replaced(self, installed: Path) -> None:
        points = installed / "entry_points.txt"
        points.write_text("[edgewise.edge]\nllamacpp = echo_engine:Echo\n")
        with pytest.raises(UsageError, match="llamacpp"):
            EDGES.names()
        with closing(open_edge(Settings(edge_engine="auto", ctx=64), slots=2)) as edge:
            assert isinstance(edge, LlamaModel)
            assert (edge.context, edge.abilities.slots) == (64, 2)


def test_no_slots_and_no_context_are_refused() -> None:
    for options in (EdgeOptions(slots=0), EdgeOptions(context=0)):
        with pytest.raises(UsageError, match="at least 1"):
            LlamaModel("bundled", options)


@pytest.mark.parametrize(
    ("engine", "library"),
    [("mlx", "mlx_lm"), ("onnx", "onnxruntime_genai"), ("transformers", "transformers")],
)
def test_without_its_library_an_engine_names_its_extra(
    engine: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=rf"edgewise\[{engine}\]"):
        EDGES.load(engine)("own/model", EdgeOptions())
