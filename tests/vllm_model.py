"""The bundled cloud model in the form that vLLM loads; run by vLLM's own Python.

python vllm_model.py cloud.gguf OUT
"""

import json
import sys
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main(source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config).float()
    model.load_state_dict(read.state_dict())
    fields = gguf.GGUFReader(source).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    eos = int(fields["tokenizer.ggml.eos_token_id"].contents())
    vocabulary = {token: index for index, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    bpe.add_special_tokens([AddedToken(token, special=True) for token in control])
    bpe.save(str(out / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[eos]}
    described["chat_template"] = fields["tokenizer.chat_template"].contents()
    (out / "tokenizer_config.json").write_text(json.dumps(described))
    model.config.eos_token_id = eos
    model.generation_config.eos_token_id = eos
    model.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
