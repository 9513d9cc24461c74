"""Decoder-only language models built from their sizes, named ``llm:gpt2`` and ``llm:mpt``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.trace import TimedPhase
from breakeven.workloads.spec import OptionValue, WorkloadSpec, suggest
from breakeven.workloads.timed_step import BuiltStep, StepFactory

# Names of the same sizes in configurations of transformers and others.
_OTHER_NAMES = {
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "vocab_size": "vocab",
    "dropout": "drop",
}
_EXPANSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The sizes and options of a model.

    Args:
        d_model: Width of the residual stream.
        n_heads: Attention heads per layer.
        n_layers: Number of layers.
        vocab: Number of tokens in the vocabulary.
        seq: Tokens per sample.
        drop: Share of values that dropout zeroes in training, except in the loss.
        tied: Whether the output layer shares the token embedding.
        bias: Whether linear layers and norms have biases.
        written_out: Whether layer norm and GELU are elementwise operators, as written by hand.
    """

    d_model: int
    n_heads: int
    n_layers: int
    vocab: int
    seq: int
    drop: float = 0.0
    tied: bool = True
    bias: bool = True
    written_out: bool = False


# GPT-2 as published; MPT as its authors train it, without biases and dropout.
_OF_FAMILY: dict[str, dict[str, OptionValue]] = {"gpt2": {"drop": 0.1}, "mpt": {"bias": False}}


def prepare_language_model(
    spec: WorkloadSpec, dtype: torch.dtype, phase: TimedPhase
) -> StepFactory:
    """Build a language model, and return a factory of its steps.

    The model has pre-norm layers, learned positions and causal attention, by torch's
    `scaled_dot_product_attention`. The targets of a training step are tokens of the batch.

    Args:
        spec: Options are the sizes of the model: ``d_model``, ``n_heads``, ``n_layers``, ``vocab``
            and ``seq`` are required, others default to the family's.
        dtype: Dtype of the parameters.
        phase: The timed phase; every phase with a backward pass includes the loss.

    Raises:
        WorkloadError: If there is no such family, or a size is missing or invalid.
    """
    model = _Decoder(_shape_of(spec)).to(dtype)
    seq = model.shape.seq
    has_loss = phase not in (TimedPhase.INFERENCE, TimedPhase.FORWARD)

    def make_step(batch_size: int) -> BuiltStep:
        tokens = torch.zeros(batch_size, seq, dtype=torch.int64)
        targets = torch.zeros_like(tokens)
        return BuiltStep(
            model=model,
            inputs=(tokens,),
            targets=(targets,) if has_loss else (),
            forward=lambda: model(tokens),
            loss=lambda logits: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        )

    return make_step


def _shape_of(spec: WorkloadSpec) -> _Shape:
    if spec.name not in _OF_FAMILY:
        raise WorkloadError(
            f"there is no family {spec.name!r} of language models",
            hint=suggest(spec.name, _OF_FAMILY),
        )
    known = {field.name: field for field in fields(_Shape)}
    given: dict[str, Any] = dict(_OF_FAMILY[spec.name])
    for key, value in spec.options:
        name = _OTHER_NAMES.get(key, key)
        if name not in known:
            raise WorkloadError(
                f"{spec.text!r}: a language model has no number {key!r}", hint=suggest(key, known)
            )
        given[name] = _checked(spec, key, value, str(known[name].type))
    missing = [name for name in ("d_model", "n_heads", "n_layers", "vocab", "seq")
               if name not in given]  # fmt: skip
    if missing:
        raise WorkloadError(
            f"{spec.text!r} does not say {', '.join(missing)}",
            hint="llm:gpt2?d_model=768&n_heads=12&n_layers=12&vocab=50257&seq=1024",
        )
    shape = _Shape(**given)
    if shape.d_model % shape.n_heads:
        raise WorkloadError(f"{spec.text!r}: {shape.n_heads} heads do not divide {shape.d_model}")
    return shape


def _checked(spec: WorkloadSpec, key: str, value: OptionValue, type_name: str) -> OptionValue:
    if type_name == "bool" and value in (False, True):
        return bool(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if type_name == "float" and is_number and 0 <= float(value) < 1:
        return float(value)
    if type_name == "int" and isinstance(value, int) and is_number and value >= 1:
        return value
    allowed = {"bool": "0 or 1", "float": "from 0 to below 1", "int": "a whole number from 1"}
    raise WorkloadError(f"{spec.text!r}: {key}={value}", hint=f"{key} is {allowed[type_name]}")


class _Decoder(nn.Module):
    """Embeddings, layers, a final norm, and the logits of every token."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.d_model)
        self.positions = nn.Embedding(shape.seq, shape.d_model)
        self.drop = _dropout(shape)
        self.layers = nn.Sequential(*(_Layer(shape) for _ in range(shape.n_layers)))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        stream_BTD = self.drop(self.tokens(tokens_BT) + self.positions(places))  # noqa: N806
        return self.head(self.norm(self.layers(stream_BTD)))


class _Layer(nn.Module):
    """Attention and a two-layer MLP, each applied to the normalised stream and added to it."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        width = shape.d_model
        self.attention_norm = _norm(shape)
        self.attention = _Attention(shape)
        self.linear_norm = _norm(shape)
        self.up = nn.Linear(width, _EXPANSION * width, bias=shape.bias)
        self.activation = _WrittenGelu() if shape.written_out else nn.GELU(approximate="tanh")
        self.down = nn.Linear(_EXPANSION * width, width, bias=shape.bias)
        self.drop = _dropout(shape)

    def forward(self, stream_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        attended_BTD = self.attention(self.attention_norm(stream_BTD))  # noqa: N806
        stream_BTD = stream_BTD + self.drop(attended_BTD)  # noqa: N806
        hidden_BTH = self.activation(self.up(self.linear_norm(stream_BTD)))  # noqa: N806
        return stream_BTD + self.drop(self.down(hidden_BTH))


class _Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.num_heads = shape.n_heads
        self.drop = shape.drop
        self.to_qkv = nn.Linear(shape.d_model, 3 * shape.d_model, bias=shape.bias)
        self.to_output = nn.Linear(shape.d_model, shape.d_model, bias=shape.bias)

    def forward(self, stream_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        batch, length, width = stream_BTD.shape
        parts = self.to_qkv(stream_BTD).chunk(3, dim=-1)
        query, key, value = (
            part.view(batch, length, self.num_heads, -1).transpose(1, 2) for part in parts
        )
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.drop if self.training else 0.0, is_causal=True
        )
        return self.to_output(attended.transpose(1, 2).reshape(batch, length, width))


def _norm(shape: _Shape) -> nn.Module:
    if shape.written_out:
        return _WrittenNorm(shape.d_model)
    return nn.LayerNorm(shape.d_model, bias=shape.bias)


def _dropout(shape: _Shape) -> nn.Module:
    return nn.Dropout(shape.drop) if shape.drop else nn.Identity()


class _WrittenNorm(nn.Module):
    """Layer norm, written by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mean = values.mean(dim=-1, keepdim=True)
        variance = values.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((values - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class _WrittenGelu(nn.Module):
    """GELU by its tanh approximation, written by hand."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * torch.pow(values, 3))
        return 0.5 * values * (1 + torch.tanh(inner))
