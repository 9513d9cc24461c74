from __future__ import annotations

import pytest

from breakeven.trace import Event, HostWork, LoaderFacts, Op, RunFacts, Settings
from factories.cases import lines, marked, rule_of, rules_of
from factories.layers import Blocks, convolution, gain, gpu_case, linear, only
from factories.steps import at, loader_facts

FIXED = RunFacts(num_steps=3, num_convolution_shapes=1)
VARYING = RunFacts(num_steps=4, num_convolution_shapes=4, shapes_vary_at=at(9))
BENCHMARK = Settings(cudnn_benchmark=True)


@pytest.mark.parametrize("rule", rules_of("KERN"), ids=lambda rule: rule.code)
def test_a_step_without_convolutions_is_healthy(rule) -> None:
    assert rule.detect(gpu_case(*linear(batch=64, inputs=64, outputs=64), facts=FIXED)) == ()


# --- memory format -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["A100", "V100"])
def test_half_precision_convolutions_with_channels_first(device: str) -> None:
    case = gpu_case(*convolution(), *convolution(), device=device)
    found = only(rule_of("KERN001"), case)

    assert found.location is None
    assert len(found.events) == 4
    assert 0.05 < gain(case, found) < 0.7


def test_slow_loading_does_not_hide_the_layout() -> None:
    loading = HostWork(kind="data", duration_ns=10**9)
    case = gpu_case(loading, *convolution())
    # What the fix saves of this step is next to nothing, and is told so.
    assert gain(case, only(rule_of("KERN001"), case)) < 0.01


def test_the_batch_is_converted_once() -> None:
    case = gpu_case(*convolution(), *convolution())
    edit = only(rule_of("KERN001"), case).edit
    assert edit is not None
    edited = edit.apply(case.trace)

    assert [o.name for o in edited.ops].count("aten.clone.default") == 1
    convolutions = [o for o in edited.ops if "convolution" in o.name]
    layouts = {spec.layout for o in convolutions for spec in (*o.inputs, *o.outputs)}
    assert layouts == {"channels_last"}


@pytest.mark.parametrize(
    ("events", "device"),
    [
        pytest.param(convolution(layout="channels_last"), "A100", id="channels last"),
        pytest.param(convolution(dtype="float32"), "A100", id="float32"),
        pytest.param(convolution(groups=64), "A100", id="depthwise"),
        pytest.param((*convolution(), *convolution(groups=4)), "A100", id="grouped beside it"),
        pytest.param(convolution(), "P40", id="no tensor cores"),
        pytest.param(convolution(batch=2, pixels=8), "A100", id="launch-bound"),
        pytest.param(convolution(window=1), "A100", id="a product"),
    ],
)
def test_convolutions_that_another_layout_does_not_help(
    events: tuple[Event, ...], device: str
) -> None:
    assert rule_of("KERN001").detect(gpu_case(*events, device=device)) == ()


# --- cuDNN's search ------------------------------------------------------------------------------


def test_fixed_shapes_without_the_search() -> None:
    found = only(rule_of("KERN002"), gpu_case(*convolution(), facts=FIXED))

    assert found.location is None
    assert found.edit is None
    assert found.gain is None
    assert "all 3 recorded steps" in found.evidence


@pytest.mark.parametrize(
    ("events", "facts", "settings"),
    [
        pytest.param(convolution(), FIXED, BENCHMARK, id="on"),
        pytest.param(convolution(), VARYING, None, id="varying"),
        pytest.param(convolution(), RunFacts(), None, id="not recorded"),
        pytest.param(
            convolution(), RunFacts(num_steps=1, num_convolution_shapes=1), None, id="one step"
        ),
        pytest.param(convolution(batch=2, pixels=8), FIXED, None, id="launch-bound"),
        pytest.param(
            (*convolution(batch=1), *linear(batch=4096, inputs=4096, outputs=4096)),
            FIXED,
            None,
            id="other work",
        ),
    ],
)
def test_a_search_that_would_not_pay(
    events: tuple[Event, ...], facts: RunFacts, settings: Settings | None
) -> None:
    assert rule_of("KERN002").detect(gpu_case(*events, facts=facts, settings=settings)) == ()


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.backends.cudnn.benchmark = True  # here\n",
        "from torch.backends import cudnn\ncudnn.benchmark = True  # here\n",
        "cudnn.benchmark = False\ncudnn.benchmark = not args.exact  # here\n",
    ],
)
def test_the_search_at_each_new_shape(source: str) -> None:
    case = gpu_case(*convolution(), facts=VARYING, settings=BENCHMARK, source=source)
    found = only(rule_of("KERN003"), case)

    assert [found.location.line] == marked(source)
    assert "4 different shapes" in found.evidence


def test_the_search_is_shown_where_shapes_vary_if_no_line_sets_it() -> None:
    found = only(rule_of("KERN003"), gpu_case(*convolution(), facts=VARYING, settings=BENCHMARK))
    assert found.location == at(9)


def loader(num_samples: int) -> LoaderFacts:
    return loader_facts(num_samples=num_samples)


@pytest.mark.parametrize("loaders", [(), (loader(64),)], ids=["no loader", "even batches"])
def test_two_shapes_that_no_last_batch_explains(loaders: tuple[LoaderFacts, ...]) -> None:
    facts = RunFacts(num_steps=3, num_convolution_shapes=2, loaders=loaders)
    case = gpu_case(*convolution(), facts=facts, settings=BENCHMARK)
    assert "2 different shapes" in only(rule_of("KERN003"), case).evidence


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        pytest.param(
            RunFacts(num_steps=3, num_convolution_shapes=2, loaders=(loader(65),)),
            BENCHMARK,
            id="a loader's last batch",
        ),
        pytest.param(FIXED, BENCHMARK, id="fixed"),
        pytest.param(
            RunFacts(num_steps=9, num_convolution_shapes=2), BENCHMARK, id="a smaller last batch"
        ),
        pytest.param(VARYING, None, id="off"),
    ],
)
def test_shapes_that_the_search_can_live_with(facts: RunFacts, settings: Settings | None) -> None:
    case = gpu_case(*convolution(), facts=facts, settings=settings)
    assert rule_of("KERN003").detect(case) == ()


# --- a bias before a batch norm ------------------------------------------------------------------

NETWORK = """
    class Block(nn.Module):
        def __init__(self, width):
            self.conv1 = nn.Conv2d(width, width, 3, padding=1)  # here
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.stem = nn.Sequential(
                nn.Conv2d(3, 16, 3),
                nn.BatchNorm2d(16),
            )
    """


def test_a_bias_before_a_batch_norm() -> None:
    case = gpu_case(
        *convolution(bias=True, norm=True, module="Block.conv1", line=30),
        *convolution(norm=True, module="Block.conv2", line=31),
        source=NETWORK,
    )
    found = only(rule_of("KERN004"), case)

    assert [found.location.line] == marked(NETWORK)
    # The convolution and its gradient.
    assert found.events == (0, 2)
    assert 0 < gain(case, found) < 0.2


def test_the_line_of_layers_that_are_made_in_a_tuple() -> None:
    source = """
    class Block(nn.Module):
        def __init__(self):
            self.conv1, self.conv2 = (
                nn.Conv2d(8, 8, 3),
                nn.Conv2d(8, 8, 3),
            )
            self.stem = nn.Sequential(*(
                nn.Conv2d(8, 8, 3),
                nn.Conv2d(8, 8, 3),  # here
            ))
    """
    sizes = {"channels_in": 8, "channels_out": 8}
    layer = convolution(bias=True, norm=True, module="Block.stem.1", line=30, **sizes)
    assert lines(rule_of("KERN004").detect(gpu_case(*layer, source=source))) == marked(source)


@pytest.mark.parametrize(
    ("module", "sizes", "line"),
    [
        ("Block.stem.0", {"channels_in": 3, "channels_out": 16}, 8),
        ("Sequential.0", {"channels_in": 3, "channels_out": 16}, 8),
        # Nothing in the source makes this one: the line that calls it is shown.
        ("Other.features", {"channels_in": 5, "channels_out": 7}, 30),
        ("", {}, 30),
    ],
)
def test_the_line_that_makes_the_layer(module: str, sizes: dict[str, int], line: int) -> None:
    source = NETWORK.replace("(width, width, 3, padding=1)", "(64, 64, 3)").replace(
        "(width, width, 3, padding=1, bias=False)", "(64, 64, 3, bias=False)"
    )
    layer = convolution(bias=True, norm=True, module=module, line=30, **sizes)
    assert lines(rule_of("KERN004").detect(gpu_case(*layer, source=source))) == [line]


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(convolution(norm=True), id="no bias"),
        pytest.param(convolution(bias=True), id="no batch norm"),
        pytest.param(convolution(bias=True, norm=True, is_training=False), id="evaluation"),
    ],
)
def test_layers_without_a_useless_bias(layer: tuple[Op, ...]) -> None:
    assert rule_of("KERN004").detect(gpu_case(*layer)) == ()


def test_a_bias_that_something_else_reads_too_stays() -> None:
    forward, norm, backward = convolution(bias=True, norm=True)
    result = forward.outputs[0]
    reader = Op(name="aten.relu.default", inputs=(result,), outputs=(result,))
    for events in (
        (forward, reader, norm, backward),
        (forward, norm, reader, backward),
    ):
        assert rule_of("KERN004").detect(gpu_case(*events)) == ()


# --- small factorizations ------------------------------------------------------------------------


def factorization(name: str, *shape: int, device: str = "cuda:0", line: int = 7) -> Op:
    matrix = Blocks().tensor(*shape)
    return Op(
        name=f"aten.{name}.default",
        inputs=(matrix,),
        outputs=(matrix,),
        device=device,
        location=at(line),
    )


@pytest.mark.parametrize("name", ["_linalg_svd", "linalg_qr", "_linalg_eigh", "linalg_cholesky_ex"])
def test_small_matrices_factorized_on_the_gpu(name: str) -> None:
    case = gpu_case(
        factorization(name, 32, 16, 16),
        factorization(name, 64, 64, line=9),
        factorization(name, 3, 3, line=9),
    )
    found = rule_of("KERN005").detect(case)

    assert lines(found) == [7, 9]
    assert "16 × 16" in found[0].title
    assert "32 matrices" in found[0].evidence
    assert found[1].events == (1, 2)
    # No figure is made up for a gain that nothing here tells.
    assert found[0].edit is None
    assert found[0].gain is None


def test_a_matrix_of_hundreds_of_rows_leaves_the_gpu_idle_too() -> None:
    (found,) = rule_of("KERN005").detect(gpu_case(factorization("linalg_cholesky_ex", 375, 375)))

    assert "375 × 375" in found.title
    assert "many in one call" in found.fix


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param(factorization("linalg_cholesky_ex", 512, 512), id="large"),
        pytest.param(factorization("_linalg_svd", 16, 16, device="cpu"), id="on the host"),
        pytest.param(factorization("linalg_vector_norm", 16, 16), id="a norm"),
        pytest.param(factorization("linalg_solve_triangular", 16, 16), id="a substitution"),
    ],
)
def test_linear_algebra_that_stays(healthy: Op) -> None:
    assert rule_of("KERN005").detect(gpu_case(healthy)) == ()
