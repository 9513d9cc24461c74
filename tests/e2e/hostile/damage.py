"""Scripts that delete, replace, move or close off what is there."""

from hostile.script import answered, refused

SCRIPTS = (
    answered("overwrites itself", """
        Path(__file__).write_text("raise SystemExit('gone')")
        train()
    """),
    answered("deletes itself", """
        os.unlink(__file__)
        train()
    """),
    answered("empties its own modules", """
        import training
        os.truncate(training.__file__, 0)
        train()
    """),
    answered("deletes its data", """
        shutil.rmtree("data")
        train()
    """),
    answered("deletes all of its folder", """
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        train()
    """),
    answered("deletes the folder that it is in, and stays there", """
        shutil.rmtree(os.getcwd())
        train()
    """),
    answered("deletes the home of its user", """
        shutil.rmtree("../home")
        train()
    """),
    answered("deletes its data by a shell", """
        subprocess.run("rm -rf data checkpoints ../outside", shell=True, check=True)
        train()
    """, needs_layer=True),
    answered("deletes its data by the C library", """
        libc = ctypes.CDLL(None)
        assert libc.unlink(b"data/train.csv") == 0
        train()
    """, needs_layer=True),
    answered("deletes its data by the C library's remove of another thread", """
        def remove():
            assert ctypes.CDLL(None).remove(b"data/train.csv") == 0
        thread = threading.Thread(target=remove)
        thread.start()
        thread.join()
        train()
    """, needs_layer=True),
    answered("deletes through a descriptor of a folder", """
        folder = os.open("data", os.O_RDONLY)
        os.unlink("train.csv", dir_fd=folder)
        train()
    """),
    answered("moves its data away", """
        shutil.move("data", "../outside/data")
        assert Path("../outside/data/train.csv").exists()
        train()
    """),
    answered("renames its data and puts a file there", """
        os.rename("data", "old")
        Path("data").write_text("no folder any more")
        train()
    """),
    answered("swaps two files", """
        os.rename("data/train.csv", "x")
        os.rename("checkpoints/best.pt", "data/train.csv")
        os.rename("x", "checkpoints/best.pt")
        train()
    """),
    answered("replaces a link by a file", """
        Path("new").write_text("mine")
        os.replace("new", "link.txt")
        train()
    """),
    answered("replaces what a link names", """
        Path("link.txt").resolve().unlink()
        Path("link.txt").write_text("other")
        train()
    """),
    answered("replaces its data by a link to itself", """
        os.unlink("data/train.csv")
        os.symlink("train.csv", "data/train.csv")
        train()
    """),
    answered("truncates by a descriptor", """
        with open("data/train.csv", "r+b") as file:
            os.ftruncate(file.fileno(), 3)
        train()
    """),
    answered("closes its data off", """
        os.chmod("data/train.csv", 0)
        os.chmod("data/deep", 0)
        train()
    """),
    answered("closes its folder off", """
        os.chmod(".", 0o500)
        train()
    """),
    answered("closes off the folder of temporary files", """
        os.chmod(os.environ["TMPDIR"], 0)
        train()
    """),
    answered("deletes the folder of temporary files", """
        import tempfile
        shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
        train()
    """),
    answered("gives its data away", """
        try:
            os.chown("data/train.csv", 12345, 12345)
        except PermissionError:
            print("is not an administrator")
        train()
    """),
    answered("sets back the times of its data", """
        os.utime("data/train.csv", (0, 0))
        os.utime("data", (0, 0))
        train()
    """),
    answered("gives its data attributes", """
        try:
            os.setxattr("data/train.csv", "user.seen", b"1")
        except OSError as error:
            print(error)
        train()
    """),
    answered("saves over a good checkpoint at every step", """
        for loss in steps():
            torch.save({"loss": loss.detach()}, "checkpoints/best.pt")
    """),
    answered("saves a module over a good checkpoint", """
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "checkpoints/best.pt")
        train()
    """, needs_layer=True),
    answered("saves arrays over its data", """
        import numpy as np
        np.save("array.npy", np.zeros(4))
        np.savez("data/train.csv", a=np.zeros(4))
        os.replace("data/train.csv.npz", "data/train.csv")
        train()
    """),
    answered("maps its data for writing, as an array", """
        import numpy as np
        data = np.memmap("data/deep/labels.bin", dtype=np.uint8, mode="r+")
        data[:] = 255
        data.flush()
        train()
    """),
    answered("maps its data for writing, as memory", """
        import mmap
        with open("data/deep/labels.bin", "r+b") as file:
            pages = mmap.mmap(file.fileno(), 0)
            pages[:] = b"x" * len(pages)
            pages.flush()
        train()
    """),
    answered("maps its data for writing, as a storage of torch", """
        storage = torch.UntypedStorage.from_file("data/deep/labels.bin", True, 8192)
        storage.fill_(7)
        train()
    """, needs_layer=True),
    answered("writes through the C library's streams", """
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p(libc.fopen(b"data/train.csv", b"w"))
        libc.fputs(b"gone", stream)
        libc.fclose(stream)
        train()
    """, needs_layer=True),
    answered("copies over its data within the kernel", """
        with open("training.py", "rb") as source, open("data/train.csv", "wb") as target:
            os.sendfile(target.fileno(), source.fileno(), 0, 100)
        train()
    """),
    answered("writes through a link out of its folder", """
        Path("link.txt").write_text("gone")
        train()
    """),
    answered("writes through a hard link", """
        with open("same.csv", "a") as file:
            file.write("4,5,6")
        train()
    """),
    answered("writes through a descriptor that names a file", """
        with open("data/train.csv", "rb") as file:
            with open(f"/proc/self/fd/{file.fileno()}", "wb") as again:
                again.write(b"gone")
        train()
    """, needs_layer=True),
    refused("fails where a file is in its way", r"raised FileExistsError.*train\.py:6", """
        open("data/train.csv", "x")
        train()
    """),
    refused("needs what it has just deleted", r"raised FileNotFoundError.*train\.csv", """
        os.unlink("data/train.csv")
        open("data/train.csv")
    """),
)  # fmt: skip
