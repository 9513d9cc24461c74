"""Imported by Python as it starts: takes files in place of downloads.

Beside it lie ``answers.json``, files by URL, and, where torchvision is to take data of any
checksum, ``any_checksum``. Modules are changed when the script has imported them, and not before.
"""

import importlib.abc
import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent


def change_torchvision(module: ModuleType) -> None:
    """Take a file for intact if it is there."""
    module.check_integrity = lambda fpath, md5=None: Path(fpath).is_file()


def change_requests(module: ModuleType) -> None:
    """Answer requests that have a file."""
    send = module.HTTPAdapter.send

    def answer(self, request, *arguments, **options):
        if request.url not in ANSWERS:
            return send(self, request, *arguments, **options)
        from urllib3 import HTTPResponse

        body = io.BytesIO(Path(ANSWERS[request.url]).read_bytes())
        response = HTTPResponse(body=body, status=200, preload_content=False)
        return self.build_response(request, response)

    module.HTTPAdapter.send = answer


def change_urllib(module: ModuleType) -> None:
    """Answer requests that have a file."""
    from email.message import Message

    class FromFile(module.BaseHandler):
        handler_order = 100  # before those that ask the network

        def answer(self, request):
            if request.full_url not in ANSWERS:
                return None
            body = Path(ANSWERS[request.full_url]).read_bytes()
            headers = Message()
            headers["Content-Length"] = str(len(body))
            response = module.addinfourl(io.BytesIO(body), headers, request.full_url, 200)
            response.msg = "OK"
            return response

        http_open = https_open = answer

    module.install_opener(module.build_opener(FromFile))


ANSWERS = (
    json.loads((FOLDER / "answers.json").read_text()) if (FOLDER / "answers.json").exists() else {}
)
CHANGES = {"requests.adapters": change_requests, "urllib.request": change_urllib} if ANSWERS else {}
if (FOLDER / "any_checksum").exists():
    CHANGES["torchvision.datasets.utils"] = change_torchvision


class Changed(importlib.abc.Loader):
    """A module's own loader, with a change after it."""

    def __init__(self, loader, change) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec):
        """Leave that to the loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """Run the module, then change it."""
        self.loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self.loader
        self.change(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are changed."""

    def find_spec(self, fullname, path, target=None):
        """Return how such a module is loaded, the first time that it is asked for."""
        if fullname not in CHANGES:
            return None
        change = CHANGES.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        spec.loader = Changed(spec.loader, change)
        return spec


sys.meta_path.insert(0, Finder())
