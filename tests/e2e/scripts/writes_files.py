"""Writes, renames and deletes files in many ways, checks what it reads back, and then trains."""

import glob
import gzip
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch


def raised(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return type(error), error.filename
    return None


def write_and_read():
    Path("new/sub").mkdir(parents=True)
    Path("new/sub/a.txt").write_text("A")
    assert os.listdir("new") == ["sub"]
    assert [entry.path for entry in os.scandir("new/sub")] == ["new/sub/a.txt"]
    assert Path("new/sub/a.txt").read_text() == "A"
    assert os.path.getsize("new/sub/a.txt") == 1
    assert glob.glob("new/**/*.txt", recursive=True) == ["new/sub/a.txt"]
    assert list(Path("new").rglob("*.txt")) == [Path("new/sub/a.txt")]
    assert [names for _, _, names in os.walk("new")] == [[], ["a.txt"]]


def change():
    with open("log.txt", "a") as log:
        log.write(" more")
    assert Path("log.txt").read_text() == "first more"
    with open("best.pt", "r+b") as best:
        best.write(b"GOOD")
    assert Path("best.pt").read_bytes() == b"GOODgood"
    os.chmod("log.txt", 0o600)
    os.utime("log.txt")
    os.truncate("log.txt", 2)
    assert Path("log.txt").read_text() == "fi"
    assert raised(open, "log.txt", "x") == (FileExistsError, "log.txt")
    descriptor = os.open("descriptor.txt", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"1")
    os.close(descriptor)


def move_and_delete():
    os.replace("old.txt", "older.txt")
    assert Path("older.txt").read_text() == "old"
    assert not os.path.exists("old.txt")
    assert raised(open, "old.txt") == (FileNotFoundError, "old.txt")
    assert {"older.txt", "old.txt"} & set(os.listdir(".")) == {"older.txt"}
    shutil.copytree("data", "copied")
    shutil.rmtree("data")
    assert not os.path.isdir("data")
    os.mkdir("data")
    assert os.listdir("data") == []
    Path("data/b").touch()
    assert os.listdir("data") == ["b"]
    os.rename("copied", "moved")
    assert os.listdir("moved") == ["a"]
    assert raised(os.mkdir, "moved") == (FileExistsError, "moved")
    assert raised(os.rmdir, "moved") is not None
    assert raised(os.remove, "nothing") == (FileNotFoundError, "nothing")
    os.rename("kept", "renamed")
    assert Path("renamed/c").read_text() == "c"
    assert not os.path.exists("kept")
    os.makedirs("deep/er", exist_ok=True)
    os.removedirs("deep/er")
    assert not os.path.exists("deep")
    os.symlink("log.txt", "link")
    assert Path("link").read_text() == "fi"


def use_libraries():
    np.save("array.npy", np.arange(4))
    assert np.load("array.npy").sum() == 6
    mapped = np.memmap("mapped.bin", dtype="f4", mode="w+", shape=(4,))
    mapped[:] = 1
    mapped.flush()
    assert os.stat("mapped.bin").st_size == 16
    torch.save({"a": torch.ones(3)}, "model.pt")
    assert torch.load("model.pt")["a"].sum() == 3
    torch.save({"a": torch.ones(3)}, Path("older.pt"), _use_new_zipfile_serialization=False)
    assert torch.load("older.pt")["a"].sum() == 3
    connection = sqlite3.connect("data.sqlite")
    connection.execute("create table t(x)")
    connection.commit()
    connection.close()
    with gzip.open("text.gz", "wt") as packed:
        packed.write("x")
    with zipfile.ZipFile("all.zip", "w") as archive:
        archive.writestr("a", "b")
    logging.FileHandler("own.log").close()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("1")
    with tempfile.NamedTemporaryFile(dir=".") as temporary:
        temporary.write(b"1")


def move_about():
    start = os.getcwd()
    os.chdir("new")
    assert Path("sub/a.txt").read_text() == "A"
    Path("here.txt").write_text("here")
    assert Path("../log.txt").exists()
    os.chdir(start)
    assert Path("new/here.txt").read_text() == "here"
    child = os.fork()
    if child == 0:
        Path("child.txt").write_text("child")
        os._exit(0)
    os.waitpid(child, 0)
    assert Path("child.txt").read_text() == "child"
    os.remove("child.txt")
    assert not Path("child.txt").exists()
    Path(os.devnull).write_text("nothing")


def train():
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).sum().backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), "best.pt")


for work in (write_and_read, change, move_and_delete, use_libraries, move_about):
    work()
if "--programs" in sys.argv:
    subprocess.run(["sh", "-c", "echo more >> log.txt; rm -r data; mv kept2 gone"], check=True)
    assert Path("gone/d").exists()
train()
