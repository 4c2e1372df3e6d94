"""The vocabulary that the name of a tokenizer means.

Source: `vocab_size` in config.json of the models that the tokenizers come with (huggingface.co, 2026-06): the rows of
the embedding, of which a tokenizer may use up to 1 % less. Names of a model with a preset have its vocabulary.
"""

from __future__ import annotations

import re
from contextlib import suppress

from gpuscale.errors import InputError
from gpuscale.presets.files import named_preset
from gpuscale.presets.models import load_model

VOCABULARIES: tuple[tuple[str, int], ...] = (
    (r"gpt-?oss|o200k_harmony", 201088), (r"llama-?4", 202048), (r"llama-?3", 128256), (r"code-?llama-?(7|13)b", 32016),
    (r"code-?llama", 32000),
    (r"(tiny|open)?-?llama|vicuna|alpaca|zephyr|solar-10|openelm|zamba2", 32000),
    (r"mistral-?nemo|tekken|pixtral|mistral-small-(24|3)|ministral|apertus|nemotron-?h", 131072),
    (r"mistral-7b\S*v0\.3|mistral-large|codestral|mathstral", 32768), (r"mixtral|mistral", 32000),
    (r"qwen-?3\.5", 248320), (r"qwen-?2\.5\S*(7b|14b|32b|72b)|qwen-?2-(7|72)b|qwen1\.5-(32|72|110)b", 152064),
    (r"qwen", 151936), (r"mimo", 151680),
    (r"deepseek-?v2|deepseek-(llm|moe)", 102400), (r"deepseek-coder", 32256), (r"deepseek", 129280),
    (r"kimi|moonlight", 163840), (r"gemma-?(3|4)", 262144), (r"gemma", 256000),
    (r"olmo-?(2|3)|dolma2", 100352), (r"olmo|mamba", 50280), (r"mpt-", 50368),
    (r"gpt-?neox|pythia|redpajama|dolly", 50277), (r"falcon-?3", 131072), (r"falcon", 65024),
    (r"bloom", 250880), (r"galactica", 50000), (r"(^|[/_-])opt-", 50272),
    (r"smollm-?3", 128256), (r"starcoder|santacoder|smollm", 49152), (r"granite-?4", 100352), (r"granite-?3", 49155),
    (r"granite", 49152), (r"phi-?4-mini", 200064), (r"phi-?4|dbrx|stablelm-?2", 100352), (r"phi-?3", 32064),
    (r"phi-?[12]", 51200), (r"glm-?[45]", 151552), (r"chatglm-?[23]", 65024), (r"internlm-?3", 128512),
    (r"internlm-?2", 92544), (r"internlm", 103168), (r"baichuan-?2", 125696), (r"baichuan", 64000),
    (r"minicpm-?3", 73448), (r"minicpm", 122753), (r"aquila", 100008), (r"command-?r|c4ai|aya-", 256000),
    (r"jamba|nanochat|rwkv", 65536), (r"nemotron-?4|minitron", 256000), (r"ernie-?4", 103424), (r"exaone", 102400),
    (r"seed-?oss", 155136), (r"minimax", 200064), (r"(^|[/_-])yi-", 64000),
    (r"cl100k", 100277), (r"o200k", 200019), (r"p50k", 50281), (r"gpt-?j|codegen", 50400),
    (r"gpt-?2|r50k|cerebras-gpt|megatron-gpt", 50257),
    (r"mt5", 250112), (r"t5|ul2", 32128), (r"xlm-r", 250002), (r"modernbert", 50368), (r"roberta|bart", 50265),
    (r"bert-(base|large)-cased", 28996), (r"bert", 30522),
)  # fmt: skip
"""Part of a tokenizer's name, in lower case -> tokens; the first that fits counts."""


def vocabulary_of(name: str) -> int | None:
    """Return the vocabulary that the name or path of a tokenizer means; None where it means none that is known."""
    text = name.strip().rstrip("/")[:300]
    for own in (text, text.rpartition("/")[2]):
        with suppress(InputError):
            return load_model(named_preset("models", own).stem).vocab
    lowered = re.sub(r"[_ ]", "-", text.lower())
    return next((size for pattern, size in VOCABULARIES if re.search(rf"(?<![a-z0-9])(?:{pattern})", lowered)), None)
