"""A language model that Lightning trains, by its Trainer or by Fabric, with the strategy of the options or of `fabric run`."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("api", choices=["trainer", "fabric"])
parser.add_argument("--strategy", default="ddp")
for name, value in {"layers": 4, "width": 512, "vocabulary": 8000, "length": 512, "batch": 2, "steps": 6}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()


class Language(lightning.LightningModule):
    """A decoder of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        layer = nn.TransformerEncoderLayer(options.width, options.width // 64, 4 * options.width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        return self.head(self.layers(self.embedding(tokens), mask, is_causal=True))

    def training_step(self, batch: list[torch.Tensor], _: int = 0) -> torch.Tensor:
        (tokens,) = batch
        return nn.functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


data = TensorDataset(torch.randint(options.vocabulary, (512, options.length + 1)))
if options.api == "trainer":
    trainer = lightning.Trainer(
        strategy=options.strategy, devices="auto", precision="bf16-mixed", max_steps=options.steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, gradient_clip_val=1.0 if options.strategy == "ddp" else None,
    )  # fmt: skip
    trainer.fit(Language(), DataLoader(data, options.batch))
else:
    fabric = lightning.Fabric()
    model = Language()
    model, optimizer = fabric.setup(model, model.configure_optimizers())
    model.mark_forward_method("training_step")
    for batch in fabric.setup_dataloaders(DataLoader(data, options.batch)):
        optimizer.zero_grad()
        fabric.backward(model.training_step(batch))
        optimizer.step()
