"""Models of torchvision, timm and transformers, traced without memory or downloads."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import pytest

from breakeven.calibrate import named_host
from breakeven.device import find_device
from breakeven.errors import WorkloadError
from breakeven.simulate import predict_steps
from breakeven.trace import Attention, NumberFormat, Op, Phase, ScaledTrace, StepCase, TimedPhase
from breakeven.workloads import trace_case

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def needs(*names: str) -> pytest.MarkDecorator:
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}")


needs_torchvision = needs("torchvision")
needs_timm = needs("timm", "torchvision")
needs_transformers = needs("transformers")
BERT = (
    "transformers:BertForQuestionAnswering?hidden_size=48&intermediate_size=96"
    "&num_hidden_layers=2&num_attention_heads=4&vocab_size=100&seq=16"
)
GPT2 = (
    "transformers:GPT2LMHeadModel?n_embd=48&n_head=4&n_layer=3&n_positions=32&vocab_size=100"
    "&bos_token_id=0&eos_token_id=0&seq=32"
)
OPT = (
    "transformers:OPTForCausalLM?hidden_size=48&ffn_dim=96&num_hidden_layers=2"
    "&num_attention_heads=4&vocab_size=100&word_embed_proj_dim=48&seq=16"
)


def traced(
    workload: str, phase: TimedPhase = TimedPhase.FORWARD_BACKWARD, **changes: Any
) -> ScaledTrace:
    return trace_case(StepCase(workload=workload, phase=phase, **changes))


def inferred(workload: str, **changes: Any) -> ScaledTrace:
    return traced(workload, TimedPhase.INFERENCE, **changes)


def names(trace: ScaledTrace, phase: Phase | None = None) -> Counter[str]:
    return Counter(
        op.name.split(".")[1] for op in trace.first.ops if phase is None or op.phase is phase
    )


def ops_of(trace: ScaledTrace, part: str, batch_size: int = 2) -> list[Op]:
    return [op for op in trace.at(batch_size).ops if part in op.name]


# torchvision


@needs_torchvision
def test_a_residual_network() -> None:
    trace = traced("torchvision:resnet18", zeroes_gradients=True)
    assert trace.first.num_parameters == 11_689_512
    counts = names(trace)
    assert (counts["convolution"], counts["convolution_backward"], counts["zero_"]) == (20, 20, 62)
    assert ops_of(trace, "aten.convolution.", 12)[0].outputs[0].shape == (12, 64, 112, 112)
    # Weights, gradients and, by hand, the first feature map are far from all of it.
    assert trace.first.peak_memory_bytes > 4 * (2 * 11_689_512 + 2 * 64 * 112 * 112)


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "number_format", "dtype"),
    [("resnet18", NumberFormat.FP16, "float16"), ("mnasnet0_5", NumberFormat.FP64, "float64")],
)
def test_another_format_is_the_same_step_with_other_dtypes(
    name: str, number_format: NumberFormat, dtype: str
) -> None:
    plain = traced(f"torchvision:{name}?image=64").first
    other = traced(f"torchvision:{name}?image=64", number_format=number_format).first
    for one, two in zip(plain.ops, other.ops, strict=True):
        assert one.name == two.name
        specs = zip((*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True)
        for before, after in specs:
            assert before.shape == after.shape
            assert after.dtype == (dtype if before.dtype == "float32" else before.dtype)


@needs_torchvision
@pytest.mark.parametrize("name", ["convnext_tiny", "regnet_y_400mf", "googlenet", "swin_t"])
def test_models_whose_constructors_read_values(name: str) -> None:
    trace = traced(f"torchvision:{name}", TimedPhase.TRAIN, optimizer="sgd")
    assert trace.at(64).ops[0].name == trace.first.ops[0].name
    assert names(trace, Phase.OPTIMIZER)


@needs_torchvision
def test_a_host_of_unknown_speed_issues_a_forward_pass_in_its_interval() -> None:
    """One image in fp32, torch 2.0.1, host not named: transformers' guide to torch.compile."""
    step = inferred("torchvision:resnet50").at(1)
    gpus = [find_device(name) for name in ("V100 PCIe 16GB", "T4")]
    v100, t4 = predict_steps(step, gpus, named_host("reference"))
    assert v100.estimate.low_ns <= 6.48e6 <= v100.estimate.high_ns
    assert v100.launch_ns > 0.5 * v100.estimate.value_ns
    # There the kernels take as long, so that of the host only the longest that it can be is known.
    assert t4.launch_ns < 6.03e6


@needs_torchvision
def test_auxiliary_classifiers_are_trained_too() -> None:
    trace = traced("torchvision:inception_v3")
    assert names(trace)["nll_loss_forward"] == 2
    assert trace.first.ops[0].inputs[0].shape[-1] == 299


# transformers


@needs_transformers
def test_a_training_step_of_bert() -> None:
    trace = traced(BERT, TimedPhase.TRAIN, optimizer="adamw", h2d="pinned")
    forward = names(trace, Phase.FORWARD)
    # After the embeddings, on the probabilities, and at the end of both halves of a layer.
    assert forward["native_dropout"] == 1 + 2 * 3
    assert forward["bmm"] == 2 * 2
    assert forward["nll_loss_forward"] == 2
    # Tokens, mask and types, and two positions.
    assert trace.first.h2d_bytes == 3 * 2 * 16 * 8 + 2 * 2 * 8


@needs_transformers
@pytest.mark.parametrize("workload", [GPT2, OPT])
def test_a_language_model_without_a_loss(workload: str) -> None:
    trace = traced(workload)
    counts = names(trace)
    # Gradients add up; nothing zeroes them.
    assert (counts["native_dropout"], counts["nll_loss_forward"], counts["zero_"]) == (0, 0, 0)
    assert names(trace, Phase.BACKWARD)["add_"] > 10
    assert names(inferred(workload))["bmm"] == names(trace, Phase.FORWARD)["bmm"]


@needs_transformers
def test_attention_of_a_model_of_transformers_is_computed_as_asked() -> None:
    fused = names(inferred(f"{GPT2}&attn_implementation=sdpa"))
    assert (fused["_scaled_dot_product_efficient_attention"], fused["bmm"]) == (3, 0)
    for attention in Attention.EAGER, Attention.SDPA:
        of_row = traced(GPT2, attention=attention)
        asked = traced(f"{GPT2}&attn_implementation={attention.value}")
        assert of_row.first.events == asked.first.events


# timm


@needs_timm
def test_a_step_as_the_benchmark_of_timm_times_it() -> None:
    trace = traced(
        "timm:resnet10t?img=176",
        TimedPhase.TRAIN,
        number_format=NumberFormat.AMP_FP16,
        optimizer="sgd-momentum-nesterov",
        zeroes_gradients=True,
    )
    first = ops_of(trace, "aten.convolution.", 8)[0].outputs[0]
    assert (first.shape, first.dtype) == ((8, 24, 88, 88), "float16")
    # The optimizer loops over the parameters, the loss is not scaled, and the loop waits.
    assert not any(name.startswith(("_foreach", "_amp_foreach")) for name in names(trace))
    assert type(trace.first.events[-1]).__name__ == "Sync"


@needs_timm
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_images_lie_in_memory_as_asked(layout: str) -> None:
    trace = traced("timm:resnet10t?img=176", channels_last=layout == "channels_last")
    assert {op.inputs[0].layout for op in ops_of(trace, "aten.convolution.")} == {layout}


@needs_timm
@pytest.mark.parametrize(("option", "dtype"), [("", "float32"), ("&fast_norm=1", "float16")])
def test_norms_of_timm_compute_in_16_bits_where_that_is_asked_for(option: str, dtype: str) -> None:
    trace = inferred(f"timm:test_convnext?img=64{option}", number_format=NumberFormat.AMP_FP16)
    assert {op.inputs[0].dtype for op in ops_of(trace, "layer_norm")} == {dtype}


@needs_timm
@pytest.mark.parametrize(
    ("size", "attention", "num_fused"), [(224, Attention.EAGER, 0), (160, Attention.SDPA, 12)]
)
def test_a_transformer_of_images_is_built_for_their_size_and_attention(
    size: int, attention: Attention, num_fused: int
) -> None:
    trace = inferred(f"timm:vit_tiny_patch16_224?img={size}", attention=attention)
    shapes = {output.shape for op in trace.first.ops for output in op.outputs}
    assert (2, (size // 16) ** 2 + 1, 192) in shapes
    assert len(ops_of(trace, "scaled_dot_product")) == num_fused
    assert names(trace)["_softmax"] == 12 - num_fused


@needs_timm
def test_an_older_name_of_timm_is_the_model_that_it_has_become() -> None:
    old, new = (inferred(f"timm:{name}?img=64") for name in ("mnasnet_a1", "semnasnet_100"))
    assert names(old) == names(new)


@pytest.mark.parametrize(
    ("workload", "options", "message", "hint"),
    [
        pytest.param(*case, marks=mark)
        for mark, cases in (
            (
                needs_torchvision,
                [
                    ("torchvision:resnet5O", {}, "no classifier 'resnet5O'", "resnet50"),
                    ("torchvision:resnet18?classes=3", {}, "classes", "image=SIZE"),
                    ("torchvision:resnet18?image=big", {}, "'big' is no image", "image=224"),
                ],
            ),
            (needs_timm, [("timm:resnet51", {}, "timm has no model 'resnet51'", "resnet50")]),
            (
                needs_transformers,
                [
                    ("transformers:BertForQuestionAnsering?seq=8", {}, "no model class",
                     "BertForQuestionAnswering"),
                    ("transformers:BertModel?seq=8&hiden_size=4", {}, "no key 'hiden_size'",
                     "hidden_size"),
                    ("transformers:BertModel", {}, "how many tokens", "seq=512"),
                    ("transformers:Wav2Vec2Model?seq=8", {}, "takes input_values",
                     "path.py:function"),
                    ("transformers:BertModel?seq=8", {"phase": TimedPhase.TRAIN},
                     "loss of BertModel is unknown", ""),
                    (GPT2, {"channels_last": True}, "not traced in channels-last memory", ""),
                ],
            ),
        )
        for case in cases
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_built_is_named(
    workload: str, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        traced(workload, **options)
    assert hint in (caught.value.hint or "")
