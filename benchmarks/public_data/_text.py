"""Corpora of words, lines and tokens, and tables of numbers."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from public_data._registry import kind

LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def words(random: np.random.Generator, count: int) -> list[str]:
    """Return different random words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(random.choice(LETTERS, random.integers(2, 10)))] = None
    return list(found)


def sentences(num_words: int, vocabulary: int, words_per_line: int) -> list[str]:
    """Return lines of words, the first words of the vocabulary often and the last seldom."""
    random = np.random.default_rng(0)
    known = np.array(words(random, vocabulary))
    drawn = known[(random.random(num_words) ** 3 * vocabulary).astype(int)]
    # Each word once, so that the vocabulary has the size that was asked for.
    drawn = np.concatenate([known, drawn])[: max(num_words, vocabulary)]
    lines = np.array_split(drawn, max(1, len(drawn) // words_per_line))
    return [" ".join(line) for line in lines]


@kind
def text(
    to: Path,
    *,
    num_words: int = 50_000,
    vocabulary: int = 5000,
    words_per_line: int = 20,
    first_line: str = "",
) -> None:
    """Write lines of words to a file, compressed where its name ends with .gz.

    Args:
        to: The file.
        num_words: All in all.
        vocabulary: How many different ones.
        words_per_line: On average.
        first_line: With what a script expects to find, such as letters of both cases.
    """
    lines = sentences(num_words, vocabulary, words_per_line)
    lines = [first_line, *lines] if first_line else lines
    written = ("\n".join(lines) + "\n").encode()
    to.write_bytes(gzip.compress(written, 1) if to.suffix == ".gz" else written)


@kind
def names(to: Path, *, count: int = 4000) -> None:
    """Write one different word per line."""
    to.write_text("\n".join(words(np.random.default_rng(0), count)) + "\n")


@kind
def random_bytes(to: Path, *, count: int, low: int = 32, high: int = 127) -> None:
    """Write random bytes of a range to a file, compressed where its name ends with .gz."""
    drawn = np.random.default_rng(0).integers(low, high, count, np.uint8).tobytes()
    to.write_bytes(gzip.compress(drawn, 1) if to.suffix == ".gz" else drawn)


@kind
def tokens(to: Path, *, count: int = 1_000_000, vocabulary: int = 50_257) -> None:
    """Write numbers of tokens as unsigned integers of 16 bits."""
    np.random.default_rng(0).integers(0, vocabulary, count).astype(np.uint16).tofile(to)


@kind
def pickled(to: Path, *, value: Any) -> None:
    """Write a value of the table as a pickle."""
    to.write_bytes(pickle.dumps(value))


@kind
def csv(
    to: Path,
    *,
    columns: Mapping[str, str],
    num_rows: int = 1000,
    separator: str = ",",
    has_header: bool = True,
) -> None:
    """Write a table of random values.

    Args:
        to: The file.
        columns: By name, what a column holds: ``number``, ``index`` (0, 1, ...), ``day`` (dates
            in order), ``0..9`` (whole numbers of a range), ``word``, or ``a|b|c`` (one of these).
        num_rows: Without the header.
        separator: Between values.
        has_header: The first line names the columns.
    """
    random = np.random.default_rng(0)
    values = [column(random, holds, num_rows) for holds in columns.values()]
    lines = [separator.join(columns)] if has_header else []
    lines += [separator.join(row) for row in zip(*values, strict=True)]
    to.write_text("\n".join(lines) + "\n")


def column(random: np.random.Generator, holds: str, num_rows: int) -> Sequence[str]:
    """Return the values of a column, as ``csv`` describes them."""
    if holds == "number":
        return [f"{value:.4f}" for value in random.standard_normal(num_rows)]
    if holds == "index":
        return [str(number) for number in range(num_rows)]
    if holds == "day":
        return [str(np.datetime64("2016-07-01") + number) for number in range(num_rows)]
    if holds == "word":
        return list(random.choice(words(random, 100), num_rows))
    if ".." in holds:
        low, high = map(int, holds.split(".."))
        return [str(value) for value in random.integers(low, high + 1, num_rows)]
    return list(random.choice(holds.split("|"), num_rows))


@kind
def json_file(to: Path, *, value: Any) -> None:
    """Write a value of the table as JSON."""
    to.write_text(json.dumps(value))


@kind
def captions(to: Path, *, num_images: int, per_image: int = 5) -> None:
    """Write captions of pictures, named as ``images`` names them, in the JSON of COCO."""
    said = sentences(10 * num_images * per_image, 200, 10)
    pictures = [{"id": number, "file_name": f"{number:06d}.jpg"} for number in range(num_images)]
    told = [
        {"id": number, "image_id": number % num_images, "caption": caption}
        for number, caption in enumerate(said[: num_images * per_image])
    ]
    to.write_text(json.dumps({"info": {}, "images": pictures, "annotations": told}))


@kind
def punkt(to: Path) -> None:
    """Write NLTK's splitter of sentences to a folder, one that knows of no abbreviation."""
    to.mkdir(parents=True, exist_ok=True)
    for name in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt"):
        (to / name).write_text("")
