"""Models of torchvision and transformers, traced without memory or downloads."""

import importlib.util
from collections import Counter

import pytest

from breakeven.calibrate import named_host
from breakeven.device import find_device
from breakeven.errors import WorkloadError
from breakeven.simulate import predict_steps
from breakeven.trace import (
    Attention,
    NumberFormat,
    Phase,
    ScaledTrace,
    StepCase,
    TimedPhase,
)
from breakeven.workloads import trace_case

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="needs torchvision"
)
needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None,
    reason="needs timm and torchvision",
)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)
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


def traced(workload, phase=TimedPhase.FORWARD_BACKWARD, **changes) -> ScaledTrace:
    return trace_case(StepCase(workload=workload, phase=phase, **changes))


def names(trace: ScaledTrace, phase: Phase | None = None) -> Counter:
    return Counter(
        op.name.split(".")[1] for op in trace.first.ops if phase is None or op.phase is phase
    )


@needs_torchvision
def test_a_residual_network():
    trace = traced("torchvision:resnet18", zeroes_gradients=True)
    assert trace.first.num_parameters == 11_689_512
    assert names(trace)["convolution"] == 20
    assert names(trace)["convolution_backward"] == 20
    assert names(trace)["zero_"] == 62
    (first, *_) = (op for op in trace.at(12).ops if op.name.startswith("aten.convolution."))
    assert first.outputs[0].shape == (12, 64, 112, 112)
    # Weights, gradients and, by hand, the first feature map are far from all of it.
    assert trace.first.peak_memory_bytes > 4 * (2 * 11_689_512 + 2 * 64 * 112 * 112)


@needs_torchvision
@pytest.mark.parametrize("name", ["resnet18", "mnasnet0_5"])
@pytest.mark.parametrize("number_format", [NumberFormat.FP16, NumberFormat.FP64])
def test_another_format_is_the_same_step_with_other_dtypes(name, number_format):
    plain = traced(f"torchvision:{name}?image=64").first
    other = traced(f"torchvision:{name}?image=64", number_format=number_format).first
    dtype = {NumberFormat.FP16: "float16", NumberFormat.FP64: "float64"}[number_format]
    for one, two in zip(plain.ops, other.ops, strict=True):
        assert one.name == two.name
        for before, after in zip(
            (*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True
        ):
            assert before.shape == after.shape
            expected = dtype if before.dtype == "float32" else before.dtype
            assert after.dtype == expected


@needs_torchvision
@pytest.mark.parametrize("name", ["convnext_tiny", "regnet_y_400mf", "googlenet", "swin_t"])
def test_models_whose_constructors_read_values(name):
    trace = traced(f"torchvision:{name}", TimedPhase.TRAIN, optimizer="sgd")
    assert trace.at(64).ops[0].name == trace.first.ops[0].name
    assert names(trace, Phase.OPTIMIZER)


@needs_torchvision
def test_a_host_of_unknown_speed_issues_a_forward_pass_in_its_interval():
    """One image in fp32, torch 2.0.1, host not named: transformers' guide to torch.compile."""
    step = traced("torchvision:resnet50", TimedPhase.INFERENCE).at(1)
    gpus = [find_device(name) for name in ("V100 PCIe 16GB", "T4")]
    v100, t4 = predict_steps(step, gpus, named_host("reference"))
    assert v100.estimate.low_ns <= 6.48e6 <= v100.estimate.high_ns
    assert v100.launch_ns > 0.5 * v100.estimate.value_ns
    # There the kernels take as long, so that of the host only the longest that it can be is known.
    assert t4.launch_ns < 6.03e6


@needs_torchvision
def test_auxiliary_classifiers_are_trained_too():
    trace = traced("torchvision:inception_v3")
    assert names(trace)["nll_loss_forward"] == 2
    assert trace.first.ops[0].inputs[0].shape[-1] == 299


@needs_torchvision
@pytest.mark.parametrize(
    ("workload", "message", "hint"),
    [
        ("torchvision:resnet5O", "no classifier 'resnet5O'", "resnet50"),
        ("torchvision:resnet18?classes=3", "classes", "image=SIZE"),
        ("torchvision:resnet18?image=big", "'big' is no image size", "image=224"),
    ],
)
def test_a_classifier_that_cannot_be_built_is_named(workload, message, hint):
    with pytest.raises(WorkloadError, match=message) as caught:
        traced(workload)
    assert hint in caught.value.hint


@needs_transformers
def test_a_training_step_of_bert():
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
def test_a_language_model_without_a_loss(workload):
    trace = traced(workload)
    assert names(trace)["native_dropout"] == 0
    assert names(trace)["nll_loss_forward"] == 0
    # Gradients add up; nothing zeroes them.
    assert names(trace, Phase.BACKWARD)["add_"] > 10
    assert names(trace)["zero_"] == 0
    inference = traced(workload, TimedPhase.INFERENCE)
    assert names(inference)["bmm"] == names(trace, Phase.FORWARD)["bmm"]


@needs_transformers
def test_attention_may_be_fused():
    fused = traced(f"{GPT2}&attn_implementation=sdpa", TimedPhase.INFERENCE)
    assert names(fused)["_scaled_dot_product_efficient_attention"] == 3
    assert names(fused)["bmm"] == 0


@needs_transformers
@pytest.mark.parametrize(
    ("workload", "message", "hint"),
    [
        (
            "transformers:BertForQuestionAnsering?seq=8",
            "no model class",
            "BertForQuestionAnswering",
        ),
        ("transformers:BertModel?seq=8&hiden_size=4", "no key 'hiden_size'", "hidden_size"),
        ("transformers:BertModel", "how many tokens", "seq=512"),
        ("transformers:Wav2Vec2Model?seq=8", "takes input_values", "path.py:function"),
    ],
)
def test_a_language_model_that_cannot_be_built_is_named(workload, message, hint):
    with pytest.raises(WorkloadError, match=message) as caught:
        traced(workload)
    assert hint in caught.value.hint


@needs_transformers
def test_a_model_without_a_loss_has_no_training_step():
    with pytest.raises(WorkloadError, match="loss of BertModel is unknown"):
        traced("transformers:BertModel?seq=8", TimedPhase.TRAIN)


@needs_timm
def test_a_step_as_the_benchmark_of_timm_times_it():
    trace = traced(
        "timm:resnet10t?img=176",
        TimedPhase.TRAIN,
        number_format=NumberFormat.AMP_FP16,
        optimizer="sgd-momentum-nesterov",
        zeroes_gradients=True,
    )
    (first, *_) = (op for op in trace.at(8).ops if op.name.startswith("aten.convolution."))
    assert first.outputs[0].shape == (8, 24, 88, 88)
    assert first.outputs[0].dtype == "float16"
    # The optimizer loops over the parameters, the loss is not scaled, and the loop waits.
    counts = names(trace)
    assert not any(name.startswith(("_foreach", "_amp_foreach")) for name in counts)
    assert type(trace.first.events[-1]).__name__ == "Sync"


@needs_timm
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_images_lie_in_memory_as_asked(layout):
    trace = traced("timm:resnet10t?img=176", channels_last=layout == "channels_last")
    layouts = Counter(
        op.inputs[0].layout for op in trace.first.ops if op.name.startswith("aten.convolution.")
    )
    assert set(layouts) == {layout}


@needs_timm
@pytest.mark.parametrize(("option", "dtype"), [("", "float32"), ("&fast_norm=1", "float16")])
def test_norms_of_timm_compute_in_16_bits_where_that_is_asked_for(option, dtype):
    trace = traced(
        f"timm:test_convnext?img=64{option}",
        TimedPhase.INFERENCE,
        number_format=NumberFormat.AMP_FP16,
    )
    norms = [op for op in trace.first.ops if "layer_norm" in op.name]
    assert {op.inputs[0].dtype for op in norms} == {dtype}


@needs_timm
@pytest.mark.parametrize("size", [224, 160])
def test_a_transformer_of_images_is_built_for_their_size(size):
    trace = traced(f"timm:vit_tiny_patch16_224?img={size}", TimedPhase.INFERENCE)
    shapes = {output.shape for op in trace.first.ops for output in op.outputs}
    assert (2, (size // 16) ** 2 + 1, 192) in shapes


@needs_timm
@pytest.mark.parametrize(("attention", "num_fused"), [(Attention.EAGER, 0), (Attention.SDPA, 12)])
def test_attention_of_a_transformer_of_images_is_computed_as_asked(attention, num_fused):
    trace = traced("timm:vit_tiny_patch16_224", TimedPhase.INFERENCE, attention=attention)
    counts = Counter(op.name.split(".")[1] for op in trace.first.ops)
    assert sum(n for name, n in counts.items() if "scaled_dot_product" in name) == num_fused
    assert counts["_softmax"] == 12 - num_fused


@needs_transformers
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_of_a_model_of_transformers_is_computed_as_asked(attention):
    of_row = traced(GPT2, attention=Attention(attention))
    assert of_row.first.events == traced(f"{GPT2}&attn_implementation={attention}").first.events


@needs_timm
def test_an_older_name_of_timm_is_the_model_that_it_has_become():
    old = trace_case(StepCase(workload="timm:mnasnet_a1?img=64", phase=TimedPhase.INFERENCE))
    new = trace_case(StepCase(workload="timm:semnasnet_100?img=64", phase=TimedPhase.INFERENCE))
    assert names(old) == names(new)


@needs_timm
def test_a_model_that_timm_lacks_is_named_with_those_near_it():
    with pytest.raises(WorkloadError, match="timm has no model 'resnet51'") as caught:
        traced("timm:resnet51")
    assert "resnet50" in (caught.value.hint or "")


@needs_transformers
def test_channels_last_is_refused_where_it_is_not_traced():
    with pytest.raises(WorkloadError, match="not traced in channels-last memory"):
        traced(GPT2, channels_last=True)
