"""Every operator that training steps are made of has a rule.

The names were recorded from steps of the models below, of all of torch's optimizers, and of a
module that calls most functions of ``torch.nn.functional``, ``torch.linalg`` and ``torch.fft``;
those that only CUDA runs were added. The slow tests record the models' steps again.
"""

import importlib
import importlib.util
import sys

import pytest

from breakeven.cost import lower
from breakeven.cost.lowering import rule_of
from breakeven.trace import Op, Settings, TensorSpec

RECORDED = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_
    _batch_norm_with_update _cdist_backward _cdist_forward _ctc_loss _ctc_loss_backward
    _cudnn_ctc_loss _cudnn_rnn _cudnn_rnn_backward _dirichlet_grad _embedding_bag
    _embedding_bag_backward _embedding_bag_dense_backward _fft_c2c _fft_r2c _foreach_abs
    _foreach_add _foreach_add_ _foreach_addcdiv_ _foreach_addcmul_ _foreach_copy_ _foreach_div_
    _foreach_lerp_ _foreach_maximum_ _foreach_mul _foreach_mul_ _foreach_norm
    _foreach_reciprocal_ _foreach_sign_ _foreach_sqrt _foreach_sqrt_ _foreach_sub
    _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_sgd_ _grouped_mm _is_all_true
    _linalg_check_errors _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
    _local_scalar_dense _log_softmax _log_softmax_backward_data _native_batch_norm_legit
    _pack_padded_sequence _pdist_backward _pdist_forward _pin_memory _prelu_kernel
    _prelu_kernel_backward _safe_softmax _sample_dirichlet _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward _softmax _softmax_backward_data
    _standard_gamma _standard_gamma_grad _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _to_copy _unique2
    _unsafe_index _unsafe_view _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward _weight_norm_interface
    _weight_norm_interface_backward abs adaptive_max_pool2d adaptive_max_pool2d_backward
    adaptive_max_pool3d adaptive_max_pool3d_backward add add_ addbmm addcdiv addcdiv_ addcmul
    addcmul_ addmm addmv affine_grid_generator alias all amax aminmax angle any arange argmax
    as_strided as_strided_ atan2 avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward
    baddbmm batch_norm_backward bernoulli_ binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits bincount bitwise_and bitwise_and_ bitwise_not block_diag
    bmm bucketize cat celu channel_shuffle clamp clamp_ clamp_min clamp_min_ clone col2im
    complex constant_pad_nd convolution convolution_backward copy_ cos cudnn_batch_norm
    cudnn_batch_norm_backward cummax cumprod cumsum detach diag_embed diagonal diagonal_backward
    digamma div div_ dot elu elu_backward embedding embedding_dense_backward empty empty_like eq
    erf exp expand exponential_ eye fill_ flip floor floor_divide fractional_max_pool2d
    fractional_max_pool2d_backward full full_like gather ge gelu gelu_backward glu glu_backward
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward gt
    hann_window hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_ hardswish_backward hardtanh hardtanh_ hardtanh_backward histc huber_loss
    huber_loss_backward im2col index index_add index_add_ index_fill index_put index_put_
    index_select isin isnan kthvalue le leaky_relu leaky_relu_backward lerp lerp_ lift_fresh
    linalg_cholesky_ex linalg_cross linalg_inv_ex linalg_lstsq linalg_lu_solve linalg_matrix_exp
    linalg_pinv linalg_qr linalg_solve_triangular linalg_vector_norm linspace log
    log_sigmoid_backward log_sigmoid_forward logaddexp logcumsumexp logical_and logical_and_
    logical_not logical_not_ logical_or_ logsumexp lt masked_fill masked_fill_ masked_scatter
    masked_select max max_pool2d_with_indices max_pool2d_with_indices_backward
    max_pool3d_with_indices max_pool3d_with_indices_backward maximum mean median min minimum
    mish mish_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward mm mse_loss mse_loss_backward
    mul mul_ multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
    multinomial mv nan_to_num nansum native_batch_norm native_batch_norm_backward native_dropout
    native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward ne neg new_empty new_empty_strided new_zeros nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward norm normal_ ones ones_like permute
    pixel_shuffle pixel_unshuffle polygamma pow prod put rand rand_like randint randn randperm
    reciprocal record_stream reflection_pad1d reflection_pad1d_backward reflection_pad2d
    reflection_pad2d_backward relu relu_ remainder renorm repeat replication_pad2d
    replication_pad2d_backward roll rot90 round rrelu_with_noise rrelu_with_noise_backward rsqrt
    rsub scalar_tensor scatter scatter_ scatter_add scatter_reduce searchsorted select
    select_backward sgn sigmoid sigmoid_ sigmoid_backward sign silu silu_ silu_backward sin
    slice slice_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward softshrink softshrink_backward sort
    split split_with_sizes sqrt sqrt_ squeeze squeeze_ stack std sub sub_ sum t take tanh tanh_
    tanh_backward threshold threshold_backward topk transpose transpose_ tril triu unbind unfold
    unfold_backward unsafe_split unsqueeze unsqueeze_ upsample_bicubic2d
    upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_nearest3d upsample_trilinear3d upsample_trilinear3d_backward var vdot view
    view_as_complex view_as_real where xlogy zero_ zeros zeros_like
""".split()  # noqa: SIM905

VISION = {
    "alexnet": (2, 3, 224, 224),
    "resnet18": (2, 3, 64, 64),
    "resnext50_32x4d": (2, 3, 64, 64),
    "densenet121": (2, 3, 64, 64),
    "squeezenet1_0": (2, 3, 64, 64),
    "googlenet": (2, 3, 64, 64),
    "inception_v3": (2, 3, 299, 299),
    "shufflenet_v2_x1_0": (2, 3, 64, 64),
    "mobilenet_v2": (2, 3, 64, 64),
    "mobilenet_v3_small": (2, 3, 64, 64),
    "mnasnet0_5": (2, 3, 64, 64),
    "efficientnet_b0": (2, 3, 64, 64),
    "regnet_y_400mf": (2, 3, 64, 64),
    "convnext_tiny": (2, 3, 64, 64),
    "vit_b_16": (2, 3, 224, 224),
    "swin_t": (2, 3, 64, 64),
    "swin_v2_t": (2, 3, 64, 64),
    "r3d_18": (2, 3, 8, 56, 56),
}

TRANSFORMER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
               "intermediate_size": 32, "vocab_size": 64}  # fmt: skip
TEXT_TO_TEXT = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
                "encoder_attention_heads": 2, "decoder_attention_heads": 2,
                "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 64,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                "decoder_start_token_id": 1}  # fmt: skip
GPT2_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
PIXELS = {**TRANSFORMER, "image_size": 32, "patch_size": 8}
LANGUAGE = {
    "BertForSequenceClassification": ("BertConfig", TRANSFORMER, "class"),
    "RobertaForMaskedLM": ("RobertaConfig", TRANSFORMER, "tokens"),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 64},
        "class",
    ),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, **GPT2_TOKENS},
        "tokens",
    ),
    "OPTForCausalLM": (
        "OPTConfig",
        {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
         "vocab_size": 64, "word_embed_proj_dim": 16},
        "tokens",
    ),
    "LlamaForCausalLM": ("LlamaConfig", {**TRANSFORMER, "num_key_value_heads": 1}, "tokens"),
    "MixtralForCausalLM": (
        "MixtralConfig",
        {**TRANSFORMER, "num_key_value_heads": 1, "num_local_experts": 2},
        "tokens",
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
         "vocab_size": 64, "decoder_start_token_id": 0},
        "tokens",
    ),
    "BartForConditionalGeneration": ("BartConfig", TEXT_TO_TEXT, "tokens"),
    "ViTForImageClassification": ("ViTConfig", PIXELS, "image"),
    "Wav2Vec2ForCTC": (
        "Wav2Vec2Config",
        {**TRANSFORMER, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
         "conv_dim": (8,) * 7, "mask_time_prob": 0.5, "mask_time_length": 2},
        "sound",
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**TEXT_TO_TEXT, "max_source_positions": 50, "num_mel_bins": 8},
        "spectrum",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_operators_have_a_rule(name):
    assert rule_of(f"{name}.default" if "." in name else f"aten.{name}.default") is not None


def test_pointwise_operators_of_torch_have_a_rule():
    torch = pytest.importorskip("torch")
    missing: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is not None and torch.Tag.pointwise in getattr(overload, "tags", ()):
            op_name = f"aten.{name}.{schema.overload_name or 'default'}"
            if rule_of(op_name) is None:
                missing.add(op_name)
    assert missing == set()


def uncosted(ops: list[Op]) -> set[str]:
    settings = Settings()
    lowered = ((op.name, lower(op, settings)) for op in ops)
    return {name for name, lowering in lowered if lowering.caveat is not None}


def recorded_step(model, make_loss, optimizer) -> list[Op]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def specs(values) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                shape=tuple(value.shape),
                dtype=str(value.dtype).removeprefix("torch."),
                device="cuda:0",
            )
            for value in tree_leaves(values)
            if isinstance(value, torch.Tensor)
        )

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[Op] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            outputs = func(*args, **kwargs)
            names = [argument.name for argument in func._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            attributes = {name: value for name, value in given.items() if not specs(value)}
            self.ops.append(
                Op(name=str(func), inputs=specs((args, kwargs)), outputs=specs(outputs),
                   attributes=attributes)
            )  # fmt: skip
            return outputs

    with Recorder() as recorder:
        make_loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return recorder.ops


def import_torchvision():
    """Import torchvision, also where its operators cannot be loaded beside a CPU-only torch."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
    # It registers shape functions of these on import, for which they must be declared.
    library = torch.library.Library("torchvision", "FRAGMENT")
    import_torchvision.library = library  # Declarations live as long as the library.
    for name in ("nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align",
                 "_ps_roi_align_backward", "roi_pool", "_roi_pool_backward", "ps_roi_pool",
                 "_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"):  # fmt: skip
        library.define(f"{name}(Tensor input) -> Tensor")
    return importlib.import_module("torchvision")


def total(result):
    """Return a scalar that depends on every tensor of a model's output."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return sum(total(part) for part in result if part is not None)
    return result.float().sum()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", VISION)
def test_steps_of_vision_models_are_costed(name):
    import torch

    models = import_torchvision().models
    build = getattr(models, name, None) or getattr(models.video, name)
    model = build(weights=None).to("meta")
    images = torch.empty(VISION[name], device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    assert uncosted(recorded_step(model, lambda m: total(m(images)), optimizer)) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_steps_of_language_models_are_costed(name, optimizer):
    import torch

    transformers = pytest.importorskip("transformers")
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # Image models import it.
    config_name, options, kind = LANGUAGE[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config_name)(**options))
    tokens = torch.randint(3, 30, (2, 12))
    classes = torch.randint(0, 2, (2,))
    inputs = {
        "class": {"input_ids": tokens, "labels": classes},
        "tokens": {"input_ids": tokens, "labels": tokens},
        "image": {"pixel_values": torch.randn(2, 3, 32, 32), "labels": classes},
        "sound": {"input_values": torch.randn(2, 8000), "labels": tokens[:, :4]},
        "spectrum": {"input_features": torch.randn(2, 8, 100), "labels": tokens},
    }[kind]
    updates = {
        "adam": lambda p: torch.optim.Adam(p, foreach=True),
        "adamw": lambda p: torch.optim.AdamW(p, fused=True),
    }
    ops = recorded_step(
        model.train(), lambda m: m(**inputs).loss, updates[optimizer](model.parameters())
    )
    assert uncosted(ops) == set()
