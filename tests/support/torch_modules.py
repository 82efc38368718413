"""What tests feed to modules of torch and of vkrnn.torch, and what they take from them."""

from __future__ import annotations

from typing import Any

import torch

import vkrnn.torch as ours

__all__ = ["LIVELY", "SMALL", "H", "I", "fed_to", "initial", "leaves", "lively", "states", "work"]

# Arguments that make a small module.
SMALL = {"input_size": 3, "hidden_size": 4}

# Features and units of `lively`.
I, H = 2, 5

# Options that PyTorch's modules lack, for each of vkrnn's.
LIVELY: dict[str, dict[str, Any]] = {
    "LSTM": {"peephole": True, "output_peephole_new_cell": True, "input_gate_activation": "hard_sigmoid", "clip": 0.9},
    "GRU": {"reset_after": False, "flip_z": True, "reset_gate_activation": "hard_sigmoid", "clip": 0.9},
    "RNN": {"activation": "sigmoid", "clip": 0.9},
}


def lively(kind: str, num_layers: int = 1, **more: Any) -> Any:
    """Return a module of vkrnn with options, from I features to H units."""
    return getattr(ours, kind)(I, H, num_layers, **LIVELY[kind], **more)


def states(found: Any) -> tuple[Any, ...]:
    """Return the last or initial states as a tuple."""
    return found if isinstance(found, tuple) else (found,)


def leaves(found: Any) -> list[Any]:
    """Return the tensors of results one by one. Old versions of PyTorch take a packed sequence for one leaf."""
    each = torch.utils._pytree.tree_leaves(found)
    packed = torch.nn.utils.rnn.PackedSequence
    return [tensor for part in each for tensor in (part if isinstance(part, packed) else (part,))]


def initial(module: Any, rows: int | None, dtype: Any = None) -> Any:
    """Draw hx for a module. Without `rows`, it is for an input without a batch."""
    shape = (module.num_layers * (1 + module.bidirectional), *(() if rows is None else (rows,)), module.hidden_size)
    drawn = tuple(torch.rand(shape, dtype=dtype) - 0.5 for _ in range(1 + (module.mode == "LSTM")))
    return drawn if module.mode == "LSTM" else drawn[0]


def work(module: Any, given: Any, hx: Any, seed: int = 1) -> dict[str, Any]:
    """Run a module forward and backward. Return outputs and gradients of the input, hx and the parameters."""
    dtype = module.weight_hh_l0.dtype
    packed = isinstance(given, torch.nn.utils.rnn.PackedSequence)
    data = (given.data if packed else given).detach().to(dtype).requires_grad_()
    source = given._replace(data=data) if packed else data
    if hx is not None:
        hx = tuple(state.detach().to(dtype).requires_grad_() for state in states(hx))
    output, last = module(source, hx if hx is None or len(hx) == 2 else hx[0])
    results = {"output": output.data if packed else output}
    results |= {f"last {number}": state for number, state in enumerate(states(last))}
    generator = torch.Generator().manual_seed(seed)
    # The same numbers in every dtype.
    upstream = {n: (torch.rand(found.shape, generator=generator) - 0.5).bfloat16() for n, found in results.items()}
    kept = {"output": output.data if packed else output} | {n: r for n, r in results.items() if n != "output"}
    inputs = {"input": data} | {f"hx {n}": state for n, state in enumerate(hx or ())} | dict(module.named_parameters())
    gradients = torch.autograd.grad(
        [kept[name] for name in kept], list(inputs.values()), [upstream[name].to(dtype) for name in kept]
    )
    results |= {f"gradient of {name}": found for name, found in zip(inputs, gradients, strict=True)}
    return {name: found.detach().double().numpy() for name, found in results.items()}


def fed_to(module: Any, fed: str, T: int, N: int) -> Any:
    """Draw an input."""
    features = module.input_size
    if fed == "unbatched":
        return torch.rand(T, features) - 0.5
    first, second = (N, T) if module.batch_first else (T, N)
    batch = torch.rand(first, second, features) - 0.5
    if fed == "batched":
        return batch
    lengths = torch.randint(1, T + 1, (N,))
    lengths[torch.randint(0, N, ())] = T
    if fed == "packed":
        lengths = lengths.sort(descending=True).values
    return torch.nn.utils.rnn.pack_padded_sequence(
        batch, lengths, batch_first=module.batch_first, enforce_sorted=fed == "packed"
    )
