"""A language model trained by Composer's Trainer, as its tutorials train one. `composer -n 8` starts it."""

import argparse

import torch
from composer import ComposerModel, Trainer
from composer.optim import DecoupledAdamW
from composer.utils import dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
for name, value in {"layers": 4, "width": 512, "vocabulary": 8000, "length": 512, "batch": 2, "steps": 6}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()


class GPT(ComposerModel):
    """Blocks of attention and feed-forward networks."""

    def __init__(self) -> None:
        super().__init__()
        width = options.width
        self.embedding, self.head = nn.Embedding(options.vocabulary, width), nn.Linear(width, options.vocabulary, bias=False)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(options.layers)
        )

    def forward(self, batch: Tensor) -> Tensor:
        values = self.embedding(batch[:, :-1])
        mask = nn.Transformer.generate_square_subsequent_mask(options.length, device=values.device, dtype=values.dtype)
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        return self.head(values)

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())


model = GPT()
data = torch.randint(options.vocabulary, (512, options.length + 1))
loader = DataLoader(data, batch_size=options.batch, sampler=dist.get_sampler(data, shuffle=True))
trainer = Trainer(
    model=model, train_dataloader=loader, max_duration=f"{options.steps}ba",
    optimizers=DecoupledAdamW(model.parameters(), lr=1e-4), precision="amp_bf16", device="gpu",
)  # fmt: skip
trainer.fit()
