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
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "community": "python-louvain",
    "cpuinfo": "py-cpuinfo",
    "cupy": "cupy-cuda12x",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "jwt": "PyJWT",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "nacl": "PyNaCl",
    "open_clip": "open-clip-torch",
    "ot": "POT",
    "pkg_resources": "setuptools",
    "pl_bolts": "lightning-bolts",
    "psycopg2": "psycopg2-binary",
    "pynvml": "nvidia-ml-py",
    "pytorch_grad_cam": "grad-cam",
    "pywt": "PyWavelets",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "skvideo": "sk-video",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "speech_recognition": "SpeechRecognition",
    "umap": "umap-learn",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
# Names that the modules of many distributions share: none of them is what to install.
_SHARED = frozenset({"azure", "google", "nvidia", "ruamel"})
_UNNAMED = "install for this Python what the message asks for"


def install_hint(module: str) -> str:
    """Return what to do about a module that cannot be found.

    Args:
        module: Its dotted name; empty where it is not known.
    """
    if not module:
        return _UNNAMED
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
    name = _DISTRIBUTIONS.get(module) or _DISTRIBUTIONS.get(top)
    if name is None and top in _SHARED:
        return _UNNAMED
    name = name or top
    return f"install it for this Python: python -m pip install {name}"


def _folder_of(top: str) -> Path | None:
    """Return the current folder where it holds a module of that name."""
    has_it = Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file()
    return Path.cwd() if has_it else None


def _with_version(distribution: str) -> str:
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return distribution
