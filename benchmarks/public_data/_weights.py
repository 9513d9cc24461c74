"""Random weights where a script would load published ones."""

from __future__ import annotations

from pathlib import Path

from public_data._registry import kind


@kind
def torchvision_weights(to: Path, *, model: str, weights: str) -> None:
    """Write a network of torchvision, as it is drawn, under the name of published weights.

    Args:
        to: The folder of the checkpoints: ``$TORCH_HOME/hub/checkpoints``.
        model: Function that makes the network: ``vgg16``.
        weights: Which of its weights the script asks for: ``IMAGENET1K_V1``.
    """
    import torch
    import torchvision

    to.mkdir(parents=True, exist_ok=True)
    url = torchvision.models.get_model_weights(model)[weights].url
    torch.manual_seed(0)
    network = getattr(torchvision.models, model)(weights=None)
    torch.save(network.state_dict(), to / url.rpartition("/")[2])
