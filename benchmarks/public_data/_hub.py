"""What transformers and datasets find in a cache or a folder, with networks as they are drawn."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from public_data._registry import kind
from public_data._text import words

COMMIT = "0" * 40
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@kind
def transformers_model(
    to: Path,
    *,
    architecture: str,
    settings: Mapping[str, Any],
    hub_name: str = "",
    vocabulary: int = 1000,
) -> None:
    """Write a network of transformers and a tokenizer of words to a folder.

    Args:
        to: The folder; with ``hub_name`` that of the cache, such as ``$HF_HOME/hub``.
        architecture: Class of transformers.
        settings: Of its configuration.
        hub_name: Under which a script asks the hub for it.
        vocabulary: How many tokens there are.
    """
    import tokenizers
    import transformers

    network_class = getattr(transformers, architecture)
    configuration = network_class.config_class(vocab_size=vocabulary, **settings)
    network = network_class(configuration)
    drawn = words(np.random.default_rng(0), vocabulary - len(SPECIAL) - len(string.printable))
    tokens = dict.fromkeys([*SPECIAL, *string.printable, *drawn])
    known = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", known["[SEP]"]), ("[CLS]", known["[CLS]"])
    )
    folder = to
    if hub_name:
        cached = to / f"models--{hub_name.replace('/', '--')}"
        (cached / "refs").mkdir(parents=True, exist_ok=True)
        (cached / "refs" / "main").write_text(COMMIT)
        folder = cached / "snapshots" / COMMIT
    network.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        eos_token="[SEP]",
    ).save_pretrained(folder)


@kind
def hub_dataset(
    to: Path,
    *,
    name: str,
    configuration: str,
    columns: Mapping[str, str],
    splits: Mapping[str, int],
) -> None:
    """Write a data set into the cache of datasets, such as ``$HF_HOME/datasets``.

    Args:
        to: The cache.
        name: ``owner/name`` on the hub.
        configuration: The configuration's name.
        columns: ``text``, ``index`` or ``class:A,B,...`` by column.
        splits: How many rows each has.
    """
    import datasets

    features = datasets.Features()
    for column, of in columns.items():
        if of.startswith("class:"):
            features[column] = datasets.ClassLabel(names=of.removeprefix("class:").split(","))
        else:
            features[column] = datasets.Value("string" if of == "text" else "int32")
    random = np.random.default_rng(0)
    vocabulary = words(random, 500)
    folder = to / name.replace("/", "___") / configuration / "0.0.0" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    title = name.rpartition("/")[2]
    sizes = {}
    for split, count in splits.items():
        values: dict[str, list[Any]] = {}
        for column, of in columns.items():
            if of == "text":
                lengths = random.integers(10, 40, count)
                values[column] = [" ".join(random.choice(vocabulary, size)) for size in lengths]
            elif of == "index":
                values[column] = list(range(count))
            else:
                values[column] = random.integers(0, features[column].num_classes, count).tolist()
        table = datasets.Dataset.from_dict(values, features=features).data.table
        with datasets.arrow_writer.ArrowWriter(
            path=str(folder / f"{title}-{split}.arrow"), features=features
        ) as writer:
            writer.write_table(table)
            num_examples, num_bytes = writer.finalize()
        sizes[split] = datasets.SplitInfo(
            name=split, num_bytes=num_bytes, num_examples=num_examples, dataset_name=title
        )
    datasets.DatasetInfo(
        features=features,
        splits=datasets.SplitDict.from_split_dict(sizes, dataset_name=title),
        builder_name="parquet",
        dataset_name=title,
        config_name=configuration,
        version="0.0.0",
    ).write_to_directory(str(folder))


@kind
def sentences_json(to: Path, *, count: int = 256) -> None:
    """Write lines of JSON, each an object whose ``text`` is some words."""
    random = np.random.default_rng(0)
    vocabulary = words(random, 500)
    lines = [
        json.dumps({"text": " ".join(random.choice(vocabulary, random.integers(10, 60)))})
        for _ in range(count)
    ]
    to.write_text("\n".join(lines) + "\n")


METRIC = """\
import datasets
import evaluate
import numpy as np


class Accuracy(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": float(np.mean(np.equal(predictions, references)))}
"""


@kind
def metric(to: Path) -> None:
    """Write a metric that evaluate loads by the name of its folder, ``NAME/NAME.py``."""
    to.write_text(METRIC)
