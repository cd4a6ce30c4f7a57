"""Makes what the frameworks read from files: tokenizers, text, and a checkpoint. `python prepare.py FOLDER`."""

import base64
import contextlib
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

folder = Path(sys.argv[1])
WORDS = 2000
words = {f"w{place}": place for place in range(WORDS - 4)}
special = {"<s>": WORDS - 4, "</s>": WORDS - 3, "<unk>": WORDS - 2, "<pad>": WORDS - 1}
made = Tokenizer(models.WordLevel(words | special, "<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
made.add_special_tokens(list(special))
(folder / "tokenizer").mkdir(parents=True, exist_ok=True)
made.save(str(folder / "tokenizer" / "tokenizer.json"))
names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096} | names
(folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))

text = " ".join(f"w{place * 7 % len(words)}" for place in range(5000))
for name in ("text", "lines"):
    (folder / name).mkdir(exist_ok=True)
for place in range(64):
    (folder / "text" / f"{place}.txt").write_text(text)
with (folder / "lines" / "data.json").open("w") as file:
    file.writelines(json.dumps({"text": text}) + "\n" for _ in range(200))
(folder / "instructions.json").write_text(
    json.dumps([{"instruction": text[:2000], "input": "", "output": text[:1000]} for _ in range(512)])
)
# tokens of single bytes, as files of tiktoken have them
(folder / "tokenizer.model").write_bytes(
    b"\n".join(base64.b64encode(bytes([place])) + b" %d" % place for place in range(256)) + b"\n"
)

# the parts of torchtune and litgpt, where those are installed
with contextlib.suppress(ImportError):
    from torchtune.models.llama3_2 import llama3_2

    sizes = {"vocab_size": 128_256, "num_layers": 4, "num_heads": 8, "num_kv_heads": 4, "embed_dim": 512, "max_seq_len": 2048}
    torch.save(llama3_2(**sizes, intermediate_dim=1408).to(torch.bfloat16).state_dict(), folder / "model.pt")
with contextlib.suppress(ImportError):
    from litgpt import GPT, Config
    from litgpt.utils import save_config

    config = Config.from_name("pythia-14m")
    (folder / "litgpt").mkdir(exist_ok=True)
    torch.save(GPT(config).state_dict(), folder / "litgpt" / "lit_model.pth")
    save_config(config, folder / "litgpt")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "litgpt" / name).write_bytes((folder / "tokenizer" / name).read_bytes())
