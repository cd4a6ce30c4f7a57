"""Language models of recurrent layers: LSTM, GRU and plain RNN."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from scaleproof.simulator.common.spec import Depth, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation, StepwiseMatmul
from scaleproof.simulator.model.transformer.layer_parts import ActivationStream, embedding, logits_and_loss

Cell = Literal["lstm", "gru", "rnn"]
# Products of a cell's input, and of its state, with matrices of its width.
_GATES: Final[dict[Cell, int]] = {"lstm": 4, "gru": 3, "rnn": 1}


class RecurrentNetwork(ModelSpec):
    """An embedding, recurrent layers, and an output projection with the loss. A recurrent layer multiplies the inputs of all
    tokens at once, and its state token by token, as cuDNN does for `torch.nn.LSTM`."""

    kind: Literal["rnn"] = "rnn"
    cell: Cell = "lstm"
    layers: Depth
    hidden: Width
    vocabulary: Width
    sequence: Width = Field(description="tokens of a sample")
    tied: bool = Field(False, description="whether the output projection shares the embedding's weights")

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Embedding, recurrent layers and output projection. Raises FieldError if `shard` divides them."""
        refuse_to_shard(self.kind, shard)
        stream = ActivationStream(self.sequence, self.hidden, shard, "layer", dropout=False)
        elements, sizes = stream.full_elements, f"h={self.hidden},s={self.sequence}"
        first, last = embedding(stream, self.vocabulary, None), logits_and_loss(stream, self.vocabulary, self.tied, bias=True)
        signature, cell = f"v={self.vocabulary},tied={self.tied})", self._cell()
        return [
            first.named("embedding", f"rnn.embedding({sizes},{signature}", elements, pinned_to_end=True),
            *(cell.named(f"{self.cell}{index}", f"rnn.{self.cell}({sizes})", elements) for index in range(self.layers)),
            last.named("head", f"rnn.head({sizes},{signature}", self.sequence * self.vocabulary, pinned_to_end=True),
        ]

    def _cell(self) -> Layer:
        tokens, hidden, columns = self.sequence, self.hidden, _GATES[self.cell] * self.hidden
        gates, output = tokens * columns, tokens * hidden
        # the gates' functions, and the state that an LSTM has in addition to its output
        states = output if self.cell == "lstm" else 0
        cell = MemoryBound("gates", gates + states, output + states, 2 * gates + states, gates + states)
        return Layer(
            operators=(
                Matmul("input gates", tokens, columns, hidden), StepwiseMatmul("state gates", tokens, columns, hidden), cell,
            ),
            tensors=(columns * hidden, columns * hidden, columns, columns),
            kept=(
                SavedActivation("input", output, group="input"), SavedActivation("gates", gates),
                SavedActivation("states", output + states),
            ),
        )  # fmt: skip
