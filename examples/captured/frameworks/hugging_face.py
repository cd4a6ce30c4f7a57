"""Training with Hugging Face: the Trainer (FSDP, DeepSpeed), PEFT (LoRA, QLoRA), TRL (SFT, DPO, GRPO), and Accelerate.

Models, tokenizers and data are made here, so that nothing is downloaded.
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("method", choices=["trainer", "sft", "dpo", "grpo", "accelerate"])
parser.add_argument("--adapters", choices=["lora", "qlora"])
parser.add_argument("--fsdp", help="version of FSDP that the Trainer uses")
parser.add_argument("--deepspeed", help="file with the settings of DeepSpeed that the Trainer uses")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
sizes = {"layers": 4, "width": 512, "vocabulary": 8000, "length": 512, "batch": 2}
for name, value in (sizes | {"accumulate": 1, "steps": 6}).items():
    parser.add_argument(f"--{name}", type=int, default=value)
options, _ = parser.parse_known_args()

words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{place}": place for place in range(4, options.vocabulary)}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
    chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
)  # fmt: skip

config = LlamaConfig(
    hidden_size=options.width, num_hidden_layers=options.layers, intermediate_size=options.width * 11 // 4,
    num_attention_heads=options.width // 64, num_key_value_heads=options.width // 128, vocab_size=options.vocabulary,
    max_position_embeddings=options.length, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
if options.adapters == "qlora":
    # quantised as from_pretrained quantises a saved model
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        model = LlamaForCausalLM.from_pretrained(folder, quantization_config=quantised, dtype=torch.bfloat16)
else:
    model = LlamaForCausalLM(config)

text = " ".join(f"w{place}" for place in torch.randint(4, options.vocabulary, (options.length + 8,)).tolist())
lora = None
if options.adapters:
    from peft import LoraConfig

    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
common = {
    "output_dir": tempfile.gettempdir(), "per_device_train_batch_size": options.batch, "max_steps": options.steps, "bf16": True,
    "gradient_accumulation_steps": options.accumulate, "gradient_checkpointing": options.checkpointing, "logging_steps": 1,
    "save_strategy": "no", "report_to": [], "torch_compile": options.compile, "deepspeed": options.deepspeed,
}  # fmt: skip
if options.adapters == "qlora":
    # activations are computed again by PyTorch's older way, which DDP cannot search for unused parameters
    common["ddp_find_unused_parameters"] = False
if options.fsdp:
    common |= {"fsdp": "full_shard auto_wrap", "fsdp_config": {
        "version": int(options.fsdp), "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    }}  # fmt: skip

if options.method == "trainer":

    def tokenized(rows: dict) -> dict:
        ids = tokenizer(rows["text"], truncation=True, max_length=options.length)["input_ids"]
        return {"input_ids": ids, "labels": ids}

    data = Dataset.from_dict({"text": [text] * 512}).map(tokenized, batched=True, remove_columns=["text"])
    if lora is not None:
        from peft import get_peft_model, prepare_model_for_kbit_training

        model = get_peft_model(prepare_model_for_kbit_training(model) if options.adapters == "qlora" else model, lora)
    Trainer(model, TrainingArguments(**common), train_dataset=data).train()
elif options.method == "sft":
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_dict({"text": [text] * 512})
    arguments = SFTConfig(**common, max_length=options.length)
    SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, peft_config=lora).train()
elif options.method == "dpo":
    from trl import DPOConfig, DPOTrainer

    rows = {"prompt": ["w5 w6 w7"] * 512, "chosen": [text] * 512, "rejected": [text[::-1]] * 512}
    arguments = DPOConfig(**common, max_length=options.length)
    reference = LlamaForCausalLM(config) if lora is None else None
    data = Dataset.from_dict(rows)
    DPOTrainer(model, reference, arguments, train_dataset=data, processing_class=tokenizer, peft_config=lora).train()
elif options.method == "grpo":
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list, **_: object) -> list[float]:
        return [float(len(set(one))) for one in completions]

    arguments = GRPOConfig(**common, max_completion_length=32, num_generations=options.batch)
    rows = Dataset.from_dict({"prompt": ["w5 w6 w7 w8"] * 512})
    GRPOTrainer(model, reward, args=arguments, train_dataset=rows, processing_class=tokenizer, peft_config=lora).train()
else:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(options.vocabulary, (512, options.length))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=options.batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (tokens,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
