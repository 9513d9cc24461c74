"""Scripts that delete, replace, move or close off what is there."""

from hostile.script import answered, refused

SCRIPTS = (
    answered("deletes itself", """
        os.unlink(__file__)
        train()
    """),
    answered("deletes all of its folder", """
        for path in Path().iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        train()
    """, in_sample=True),
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
    """, needs_layer=True, in_sample=True),
    answered("deletes its data by the C library", """
        libc = ctypes.CDLL(None)
        assert libc.unlink(b"data/train.csv") == 0
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
    answered("closes off the folder of temporary files", """
        os.chmod(os.environ["TMPDIR"], 0)
        train()
    """),
    answered("sets back the times of its data", """
        os.utime("data/train.csv", (0, 0))
        os.utime("data", (0, 0))
        train()
    """),
    answered("saves over a good checkpoint at every step", """
        for loss in steps():
            torch.save({"loss": loss.detach()}, "checkpoints/best.pt")
    """, in_sample=True),
    answered("saves a module over a good checkpoint", """
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "checkpoints/best.pt")
        train()
    """, needs_layer=True),
    answered("maps its data for writing, as memory", """
        import mmap
        with open("data/deep/labels.bin", "r+b") as file:
            pages = mmap.mmap(file.fileno(), 0)
            pages[:] = b"x" * len(pages)
            pages.flush()
        train()
    """),
    answered("writes through a link out of its folder", """
        Path("link.txt").write_text("gone")
        train()
    """, in_sample=True),
    answered("writes through a descriptor that names a file", """
        with open("data/train.csv", "rb") as file:
            with open(f"/proc/self/fd/{file.fileno()}", "wb") as again:
                again.write(b"gone")
        train()
    """, needs_layer=True),
    refused("needs what it has just deleted", r"raised FileNotFoundError.*train\.csv", """
        os.unlink("data/train.csv")
        open("data/train.csv")
    """, in_sample=True),
)  # fmt: skip
