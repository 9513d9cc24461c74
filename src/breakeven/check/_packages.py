"""What to install for a module that is absent."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

# Distributions whose modules have another name. What is not installed cannot be asked for it.
# Source: their pages on pypi.org.
_DISTRIBUTIONS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "jwt": "PyJWT",
    "pl_bolts": "lightning-bolts",
    "pytorch_grad_cam": "grad-cam",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "umap": "umap-learn",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}


def install_hint(module: str) -> str:
    """Return what to do about a module that cannot be found.

    Args:
        module: Its dotted name; empty where the script did not tell.
    """
    if not module:
        return "install for this Python what the message asks for"
    top = module.partition(".")[0]
    folder = _folder_of(top)
    if folder is not None:
        return (
            f"{folder / top} is here, but Python looks beside the script: add the folder, with "
            f"PYTHONPATH={folder}, or run the script as a module with -m"
        )
    installed = packages_distributions().get(top, [])
    if module != top and installed:
        return (
            f"{_with_version(installed[0])} is installed, and has no {module}: install the "
            "version that the script was written for"
        )
    name = _DISTRIBUTIONS.get(module) or _DISTRIBUTIONS.get(top) or top
    return f"install it for this Python: python -m pip install {name}"


def _folder_of(top: str) -> Path | None:
    """Return the current folder where it holds a module of that name."""
    here = Path.cwd()
    has_it = (here / f"{top}.py").is_file() or (here / top / "__init__.py").is_file()
    return here if has_it else None


def _with_version(distribution: str) -> str:
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return distribution
