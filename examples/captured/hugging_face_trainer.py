"""A language model that the Trainer of Hugging Face transformers trains, as its documentation shows."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    """Synthetic tokens."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(32000, (1024,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    hidden_size=1024,
    num_hidden_layers=8,
    intermediate_size=2816,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)
arguments = TrainingArguments(
    tempfile.gettempdir(),
    per_device_train_batch_size=4,
    max_steps=6,
    bf16=True,
    gradient_checkpointing=True,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()
