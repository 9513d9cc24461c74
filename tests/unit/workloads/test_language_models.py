"""Language models from their numbers: sizes and operators against what is worked out by hand."""

from collections import Counter

import pytest
import torch

from breakeven.errors import WorkloadError
from breakeven.trace import Attention, NumberFormat, StepCase, StepTrace, TimedPhase
from breakeven.workloads import trace_case

NUMBERS = "d_model=8&n_heads=2&n_layers=3&vocab=11&seq=4"
GPT2 = f"llm:gpt2?{NUMBERS}"
WIDTH, LAYERS, VOCAB, SEQ = 8, 3, 11, 4


def traced(workload=GPT2, phase=TimedPhase.TRAIN, **changes) -> StepTrace:
    return trace_case(StepCase(workload=workload, phase=phase, **changes)).first


def counts(trace: StepTrace) -> Counter[str]:
    return Counter(op.name.split(".")[1] for op in trace.ops)


def test_parameters_of_gpt2():
    of_layer = 12 * WIDTH**2 + 13 * WIDTH  # products, their biases, two norms
    expected = (VOCAB + SEQ) * WIDTH + LAYERS * of_layer + 2 * WIDTH
    assert traced().num_parameters == expected
    assert traced(f"{GPT2}&tied=0").num_parameters == expected + VOCAB * WIDTH


def test_mpt_has_neither_biases_nor_dropout():
    trace = traced(f"llm:mpt?{NUMBERS}")
    of_layer = 12 * WIDTH**2 + 2 * WIDTH
    assert trace.num_parameters == (VOCAB + SEQ) * WIDTH + LAYERS * of_layer + WIDTH
    assert counts(trace)["native_dropout"] == 0
    assert counts(traced())["native_dropout"] == 1 + 2 * LAYERS


@pytest.mark.parametrize("other", [
    f"gpt2:124m?{NUMBERS}",
    "gpt2:what-you-like?n_embd=8&n_head=2&n_layer=3&vocab_size=11&seq=4",
])  # fmt: skip
def test_other_names_of_the_same_model(other):
    assert traced(other).events == traced().events


def test_attention_by_one_operator_or_by_many():
    fused, eager = (counts(traced(attention=way)) for way in (Attention.SDPA, Attention.EAGER))
    assert fused["_scaled_dot_product_efficient_attention"] == LAYERS
    assert (fused["bmm"], fused["_softmax"]) == (0, 0)
    assert eager["_scaled_dot_product_efficient_attention"] == 0
    assert (eager["bmm"], eager["_softmax"]) == (6 * LAYERS, LAYERS)
    # Scores are scaled, and their gradients, where the fused kernel scales what it has at hand.
    assert eager["mul"] == fused["mul"] + 2 * LAYERS
    # The weights of attention are dropped too.
    assert eager["native_dropout"] == fused["native_dropout"] + LAYERS


def test_attention_operator_by_operator_computes_what_torch_does():
    from breakeven.workloads.case_traces import attention_as

    attend = torch.nn.functional
    query, key, value = torch.randn(3, 2, 4, 5, 6)
    keys, values = key[:, :2], value[:, :2]
    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)
    ways = (
        ((query, key, value), {}),
        ((query, key, value), {"is_causal": True}),
        ((query, key, value), {"attn_mask": mask, "scale": 0.3}),
        ((query, key, value), {"attn_mask": torch.randn(5, 5)}),
        ((query, keys, values), {"enable_gqa": True}),
    )
    expected = [attend.scaled_dot_product_attention(*tensors, **how) for tensors, how in ways]
    with attention_as(Attention.EAGER):
        found = [attend.scaled_dot_product_attention(*tensors, **how) for tensors, how in ways]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_norm_and_gelu_written_out():
    assert counts(traced())["native_layer_norm"] == 2 * LAYERS + 1
    written = counts(traced(f"{GPT2}&written_out=1"))
    assert (written["native_layer_norm"], written["gelu"]) == (0, 0)
    assert written["tanh"] == LAYERS


def test_a_phase_without_backward_has_no_targets():
    trace = traced(phase=TimedPhase.INFERENCE, h2d="pageable", number_format=NumberFormat.BF16)
    assert [copy.num_bytes for copy in trace.copies] == [2 * SEQ * 8]  # batch of two
    assert counts(trace)["nll_loss_forward"] == 0


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("llm:gpt2?d_model=8&n_heads=2&seq=4", "does not say n_layers, vocab"),
        (f"{GPT2}&depth=2", "has no number 'depth'"),
        (f"{GPT2}&drop=1", "drop=1"),
        (f"{GPT2}&tied=2", "tied=2"),
        (GPT2.replace("n_heads=2", "n_heads=3"), "3 heads do not divide 8"),
        (GPT2.replace("seq=4", "seq=0"), "seq=0"),
        (GPT2.replace("gpt2", "llama"), "no family 'llama'"),
    ],
)
def test_what_is_no_model_is_named(workload, message):
    with pytest.raises(WorkloadError, match=message):
        traced(workload)


def test_an_unknown_family_is_answered_with_all_there_are():
    with pytest.raises(WorkloadError) as refused:
        traced(GPT2.replace("gpt2", "llama"))
    assert refused.value.hint == "there are gpt2, mpt"


@pytest.mark.parametrize(
    ("optimizer", "operator", "number"),
    [
        ("adamw", "_foreach_addcdiv_", 1),
        ("adamw-foreach", "_foreach_addcdiv_", 1),
        ("adamw-fused", "_fused_adamw_", 1),
        ("sgd-fused", "_fused_sgd_", 1),
        ("adamw-loop", "addcdiv_", 4),
        ("decoupled_adamw", "addcdiv_", 4),
        ("sgd-plain-loop", "add_", 4),
    ],
)
def test_how_an_optimizer_goes_through_its_parameters(optimizer, operator, number):
    step = traced("breakeven:mlp?input=5&width=7&depth=2&classes=3", optimizer=optimizer)
    assert counts(step)[operator] == number


@pytest.mark.parametrize("optimizer", ["rmsprop-fused", "adamw-quick", "sgdx-fused"])
def test_an_optimizer_without_that_way_is_named(optimizer):
    with pytest.raises(WorkloadError, match=f"no optimizer '{optimizer}'"):
        traced("breakeven:mlp", optimizer=optimizer)
