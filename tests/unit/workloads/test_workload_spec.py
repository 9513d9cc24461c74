import pytest

from breakeven.errors import WorkloadError
from breakeven.workloads.spec import WorkloadKind, parse_workload


def test_a_model_of_torchvision():
    spec = parse_workload("torchvision:resnet50?image=160&progress=false")
    assert (spec.kind, spec.name) == (WorkloadKind.TORCHVISION, "resnet50")
    assert spec.options == (("image", 160), ("progress", False))


def test_a_model_of_timm():
    spec = parse_workload("timm:vit_tiny_patch16_224?img=224")
    assert (spec.kind, spec.name) == (WorkloadKind.TIMM, "vit_tiny_patch16_224")


def test_options_are_read_as_what_they_look_like():
    spec = parse_workload("transformers:BertModel?seq=384&hidden_dropout_prob=0.1&hidden_act=relu")
    assert spec.options == (("seq", 384), ("hidden_dropout_prob", 0.1), ("hidden_act", "relu"))


def test_a_function_of_a_file():
    spec = parse_workload("models/my.net.py:make_step?width=8")
    assert (spec.kind, spec.path, spec.name) == (
        WorkloadKind.FILE,
        "models/my.net.py",
        "make_step",
    )
    assert spec.options == (("width", 8),)


def test_a_network_of_our_own_may_have_a_dash_in_its_name():
    assert parse_workload("breakeven:disc-mlp").name == "disc-mlp"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (text, "names no workload")
        for text in ("resnet50", "torchvision:", "a.py:", "a.py:no-name", "")
    ]
    + [("tim:resnet50", "begins with 'tim:'"), ("tim:resnet18?a=1", "begins with 'tim:'")],
)
def test_other_forms_are_refused_with_the_forms_that_exist(text, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        parse_workload(text)
    assert "torchvision:NAME" in caught.value.hint


@pytest.mark.parametrize("query", ["image", "image=", "=3", "a=1&&b=2"])
def test_an_option_needs_a_name_and_a_value(query):
    with pytest.raises(WorkloadError, match="no value"):
        parse_workload(f"torchvision:resnet50?{query}")


def test_an_option_may_be_given_once():
    with pytest.raises(WorkloadError, match="'image' twice"):
        parse_workload("torchvision:resnet50?image=1&image=2")
