"""Reasons why fields and values that can be predicted cannot be measured."""

from __future__ import annotations

from typing import Final

PRECISIONS: Final = {
    "fp8": "processors have no 8-bit products",
    "fp4": "processors have no 4-bit products",
    "tf32": "processors have no tf32 products",
}
AUTOCAST: Final = "ranks train models whose parameters have the training precision"
GATHERED_BYTES: Final = "torch's fully_shard gathers parameters in 16 bits"
WHOLE_TENSORS: Final = "its update of an element depends on the whole tensor, of which ranks that shard have a part"
HOST_PARAMETERS: Final = "torch updates parameters in host memory by an optimizer in host memory"
UNSHARDED: Final = "torch's fully_shard offloads what it shards"
SCALED_RESTS: Final = "what workers leave unsent would have an older scale of the loss"
ONE_MICROBATCH: Final = "torch.distributed.pipelining computes the passes of one microbatch at a time"
MESSAGE_JITTER: Final = "real messages vary by themselves"
LINKS: Final = "links of this machine or of a cluster are not ours to fill with background traffic"
FLOWS: Final = "a lab's background traffic has a constant rate, and does not give way as flows do"
TRAFFIC_TIMES: Final = "a lab's background traffic begins with the lab, before the first step"
TREE_TRAFFIC: Final = "a lab's background traffic would also use the links between switches"
REAL_COMPUTE: Final = "a pass that computes cannot be given another duration, other than a multiple of its own"
FASTER: Final = "a rank can wait, but not compute faster than it does"
WITHIN_PASSES: Final = "what a pass sends before its end would be sent too early"
WHOLE_EXCHANGES: Final = "they exchange tokens before or after they compute, not in pieces"
DIVIDED_EXPERTS: Final = "real tensor-parallel ranks have whole experts, or all of them share each expert's matrices"
UNEVEN_NODES: Final = "a token comes to the same place of each node, which then need equal numbers of the ranks"
UNDUPLICATED_ROWS: Final = "experts then have one row for a token, and none to fill up to a capacity"
OTHER_NODES: Final = "ranks with the same experts would choose by different nodes"
SCALED: Final = "8-bit messages need scales of their elements, which no collective of torch sends"
FUSED: Final = "torch's products do not add gradients to a buffer"
ACCUMULATED_SHARDS: Final = "torch's fully_shard accumulates scattered gradients in the parameters' precision"
TIED_SHARDS: Final = "torch's fully_shard cannot shard weights that several layers share, other than in one group with both"
TIED_SERVERS: Final = "servers of hybrids update each rank's weights by themselves, and not copies that ranks share"
FROZEN: Final = "real ranks train modules with frozen parameters undivided, each with all of them"
LATENT: Final = "real ranks do not divide the latents of queries and keys"
CONTEXT: Final = "real rings and gathered keys have whole causal attention without windows, dropout or kept scores"
SPARSE: Final = "only the token embedding of a gpt or llama with an output head of its own is pushed by rows"
TOUCHED: Final = "other optimizers change rows that have no gradient too"
DIVIDED_ROWS: Final = "the rows of a table are on one server"
SPLIT_SHARED: Final = "torch cannot split the backward pass of positions that blocks of a stage share"
SHARED_ATTENTION: Final = "attention to the tokens of several ranks is not one kernel, of which torch keeps the output"
PRODUCTS_IN_PIECES: Final = "products that overlap with their exchanges are computed in pieces, and torch keeps whole ones"
TWO_BACKWARD_PASSES: Final = "torch keeps the outputs of products for one backward pass, not for those of inputs and of weights"
