"""Files that are hardly Python, or look as if they were not."""

from hostile.script import answered, refused

_TRAINS = b"from training import train\n"

SCRIPTS = (
    refused("is empty", r"ended without a training step", b""),
    refused("is no Python", r"raised SyntaxError.*train\.py:1", b"this is no Python at all\n"),
    refused("is half of a script", r"raised SyntaxError", _TRAINS + b"train(\n", in_sample=True),
    refused("mixes tabs and blanks", r"raised TabError",
            _TRAINS + b"if True:\n        x = 1\n\ttrain()\n"),
    refused("holds a null", r"null bytes", _TRAINS + b"x = 1\0\ntrain()\n"),
    refused("is no UTF-8", r"raised SyntaxError", _TRAINS + b"name = '\xff\xfe'\ntrain()\n"),
    refused("is UTF-16", r"raised SyntaxError|null bytes", "import torch\n".encode("utf-16")),
    refused("is nested too deeply", r"raised (SyntaxError|MemoryError|RecursionError)",
            b"(" * 5000 + b")" * 5000),
    answered("begins with a mark of its byte order", b"\xef\xbb\xbf" + _TRAINS + b"train()\n"),
    answered("is Latin-1", b"# -*- coding: latin-1 -*-\n" + _TRAINS + b"x = '\xe9'\ntrain()\n"),
    answered("has a line of 2 MB", _TRAINS + b"x = '" + b"a" * 2_000_000 + b"'\ntrain()\n",
             in_sample=True),
    answered("has odd letters in its names",
             "from training import train as üben\nµ = 1\nüben()\n".encode()),
    refused("imports what is not there", r"raised ModuleNotFoundError: No module named 'wonders'",
            b"import wonders\n", in_sample=True),
    refused("imports what fails", r"raised ZeroDivisionError.*broken\.py:1",
            b"open('broken.py', 'w').write('1 / 0')\nimport broken\n"),
    refused("wants arguments", r"ended with status 2.*train\.py:4",
            b"import argparse\nparser = argparse.ArgumentParser()\n"
            b"parser.add_argument('--data', required=True)\nparser.parse_args()\n"),
)  # fmt: skip
