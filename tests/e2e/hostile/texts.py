"""Files that are hardly Python, or look as if they were not."""

from hostile.script import answered, refused

_TRAINS = b"from training import train\n"

SCRIPTS = (
    refused("is no Python", r"raised SyntaxError.*train\.py:1", b"this is no Python at all\n"),
    refused("is half of a script", r"raised SyntaxError", _TRAINS + b"train(\n"),
    refused("holds a null", r"null bytes", _TRAINS + b"x = 1\0\ntrain()\n"),
    refused("is a picture", r"raised (SyntaxError|ValueError)", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    refused("is no UTF-8", r"raised SyntaxError", _TRAINS + b"name = '\xff\xfe'\ntrain()\n"),
    refused("is UTF-16", r"raised SyntaxError|null bytes", "import torch\n".encode("utf-16")),
    refused("names an encoding that nobody knows", r"raised SyntaxError.*encoding",
            b"# -*- coding: klingon -*-\n" + _TRAINS),
    refused("is a notebook", r"raised NameError: name 'null'",
            b'{"cells": [], "metadata": {"a": null}, "nbformat": 4}\n'),
    refused("is nested too deeply", r"raised (SyntaxError|MemoryError|RecursionError)",
            b"(" * 5000 + b")" * 5000),
    answered("begins with a mark of its byte order", b"\xef\xbb\xbf" + _TRAINS + b"train()\n"),
    answered("has lines of an old system", b"from training import train\rtrain()\r"),
    answered("is Latin-1", b"# -*- coding: latin-1 -*-\n" + _TRAINS + b"x = '\xe9'\ntrain()\n"),
    answered("has a line of 2 MB", _TRAINS + b"x = '" + b"a" * 2_000_000 + b"'\ntrain()\n"),
    answered("has form feeds between its lines", _TRAINS + b"\x0c\nx = 1\n\x0c\ntrain()\n"),
    answered("has odd letters in its names",
             "from training import train as üben\nµ = 1\nüben()\n".encode()),
    answered("starts as a program of a shell", b"#!/usr/bin/env python3\n" + _TRAINS + b"train()"),
    answered("imports what is yet to come", b"from __future__ import annotations\n" + _TRAINS
             + b"x: Nowhere\ntrain()\n"),
    refused("imports what is not there", r"raised ModuleNotFoundError: No module named 'wonders'",
            b"import wonders\n"),
    refused("imports what fails", r"raised ZeroDivisionError.*broken\.py:1",
            b"open('broken.py', 'w').write('1 / 0')\nimport broken\n"),
    refused("wants arguments", r"ended with status 2.*train\.py:4",
            b"import argparse\nparser = argparse.ArgumentParser()\n"
            b"parser.add_argument('--data', required=True)\nparser.parse_args()\n"),
)  # fmt: skip
