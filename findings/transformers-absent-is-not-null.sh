#!/usr/bin/env bash
# transformers 4.57.3: in a model configuration, a missing `num_key_value_heads` and `null` mean different models.
# Expected: both mean "as many key-value heads as heads", as they do for Llama, or a configuration with more key-value
#   heads than heads is refused.
# Observed: for 4 heads, Mistral and Mixtral have 8 key-value heads if the key is missing and 4 if it is null; Qwen2 and
#   Qwen3 have 32 and 4. No error or warning. Llama has 4 in both cases.
# Way out: a program that reads config.json has to know the default of each model class.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==4.57.3 numpy==2.3.5
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config

sizes = {"hidden_size": 512, "num_attention_heads": 4}
found = {}
for kind in (LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config):
    absent = kind.from_dict(sizes).num_key_value_heads
    null = kind.from_dict({**sizes, "num_key_value_heads": None}).num_key_value_heads
    found[kind.model_type] = (absent, null)
    print(f"{kind.model_type:8} 4 heads; key-value heads: key missing {absent}, null {null}")
assert found == {"llama": (4, 4), "mistral": (8, 4), "mixtral": (8, 4), "qwen2": (32, 4), "qwen3": (32, 4)}
PYTHON
