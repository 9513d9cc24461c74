"""Notebook files, as Jupyter writes them."""

from __future__ import annotations

import json
from pathlib import Path


def write_notebook(path: Path, *cells: str, language: str = "python") -> Path:
    """Write a notebook of code cells, in format 4, and return its path."""
    document = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": {"name": language}},
        "cells": [
            {"cell_type": "markdown", "id": "0", "metadata": {}, "source": ["# Training\n"]},
            *(
                {
                    "cell_type": "code",
                    "id": str(number),
                    "metadata": {},
                    "source": text.splitlines(keepends=True),
                    "outputs": [],
                    "execution_count": None,
                }
                for number, text in enumerate(cells, start=1)
            ),
        ],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
