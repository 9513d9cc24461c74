"""Scripts that write: wherever they like, as much as they like, what few programs write."""

from hostile.ground import MARK
from hostile.script import answered, refused

SCRIPTS = (
    answered("writes beside itself", """
        Path("log.txt").write_text("new")
        os.makedirs("runs/1/2/3")
        train()
    """),
    answered("refuses to run twice into one folder", """
        os.makedirs("run-1")
        train()
    """),
    answered("takes a lock that it never gives back", """
        import fcntl
        lock = open("lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open("train.pid", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        train()
    """),
    answered("writes to the home of its user", """
        with open(os.path.expanduser("~/.bashrc"), "a") as file:
            file.write("echo hello")
        Path("~/.config/tracker").expanduser().mkdir(parents=True)
        train()
    """),
    answered("writes by a shell", """
        subprocess.run("echo gone > data/train.csv; touch ~/new", shell=True, check=True)
        train()
    """, needs_layer=True),
    answered("writes by a shell to the system", f"""
        subprocess.run("touch /etc/{MARK} /opt/{MARK} /tmp/{MARK} 2>/dev/null", shell=True)
        train()
    """, needs_layer=True),
    answered("installs a package of its own", f"""
        try:
            Path(torch.__file__).parents[1].joinpath("{MARK}.py").write_text("x = 1")
        except PermissionError as error:
            print(error)
        train()
    """),
    answered("mends torch where it is installed", """
        try:
            with open(Path(torch.__file__).with_name("version.py"), "a") as file:
                file.write("# mended")
        except PermissionError as error:
            print(error)
        train()
    """),
    answered("writes to the system", f"""
        for path in ("/etc/hosts", "/etc/{MARK}", "/{MARK}", "/opt/{MARK}"):
            try:
                with open(path, "a") as file:
                    file.write("# {MARK}")
            except PermissionError as error:
                print(error)
        train()
    """),
    answered("writes to all folders of temporary files", f"""
        for folder in ("/tmp", "/var/tmp"):
            Path(folder, "{MARK}").write_text("left")
        train()
    """),
    answered("writes to shared memory", f"""
        Path("/dev/shm/{MARK}").write_text("left")
        train()
    """, needs_layer=True),
    answered("leaves temporary files", """
        import tempfile
        tempfile.mkdtemp()
        for _ in range(100):
            tempfile.NamedTemporaryFile(delete=False).write(b"left")
        train()
    """),
    answered("makes a file without a name, then names it", """
        try:
            file = os.open(".", os.O_TMPFILE | os.O_RDWR)
            os.write(file, b"text")
            os.link(f"/proc/self/fd/{file}", "named", follow_symlinks=True)
        except OSError as error:
            print(error)
        train()
    """, needs_layer=True),
    answered("makes a fifo", """
        os.mkfifo("fifo")
        train()
    """),
    answered("makes a node", """
        os.mknod("node", 0o600)
        train()
    """),
    answered("makes a socket", """
        import socket
        server = socket.socket(socket.AF_UNIX)
        server.bind("socket")
        server.listen()
        train()
    """, needs_layer=True),
    answered("links to its data", """
        os.link("data/train.csv", "third.csv")
        os.symlink("data", "fourth")
        with open("fourth/train.csv", "a") as file:
            file.write("4,5,6")
        train()
    """, needs_layer=True),
    answered("makes links that lead nowhere and in circles", """
        os.symlink("/nowhere", "nowhere")
        os.symlink("round", "round")
        os.symlink(".", "here")
        train()
    """),
    answered("makes a sparse file of 100 GB", """
        with open("huge", "wb") as file:
            file.truncate(100 * 10**9)
        train()
    """),
    answered("makes 10,000 files", """
        os.mkdir("many")
        for number in range(10_000):
            os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
        train()
    """),
    answered("makes 2,000 folders within each other", """
        start = os.open(".", os.O_RDONLY)
        for _ in range(2_000):
            os.mkdir("deep")
            os.chdir("deep")
        os.fchdir(start)
        train()
    """, needs_layer=True),
    answered("makes paths that are longer than the system takes", """
        start = os.open(".", os.O_RDONLY)
        for _ in range(40):
            os.mkdir("x" * 250)
            os.chdir("x" * 250)
        Path("file").write_text("deep down")
        os.fchdir(start)
        train()
    """, needs_layer=True),
    answered("makes files with odd names", """
        for name in (b"\\xff\\xfe", b"two\\nlines", b"-rf", b"\\x1b[31m", b"a" * 255, b" "):
            with open(name, "wb") as file:
                file.write(name)
        train()
    """),
    answered("changes its folder and writes there", """
        os.chdir("../outside")
        Path("precious.txt").write_text("gone")
        train()
    """),
    answered("changes its folder at every step", """
        for number, _ in enumerate(steps()):
            os.chdir("data" if number % 2 == 0 else "..")
    """),
    answered("changes to a folder that it deletes", """
        os.mkdir("short")
        os.chdir("short")
        os.rmdir("../short")
        train()
    """),
    answered("writes beside its data through a descriptor of a folder", """
        folder = os.open("data", os.O_RDONLY)
        file = os.open("new.csv", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
        os.write(file, b"text")
        os.mkdir("new", dir_fd=folder)
        train()
    """),
    answered("keeps a database with a journal", """
        import sqlite3
        database = sqlite3.connect("runs.sqlite")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE losses (step INTEGER, loss REAL)")
        for number, loss in enumerate(steps()):
            database.execute("INSERT INTO losses VALUES (?, ?)", (number, loss.item()))
            database.commit()
    """),
    answered("keeps a database of keys", """
        import dbm.dumb
        database = dbm.dumb.open("keys", "c")
        database[b"a"] = b"1"
        database.close()
        train()
    """),
    answered("keeps the three last checkpoints", """
        for number, loss in enumerate(steps()):
            torch.save(loss.detach(), f"checkpoints/{number}.pt")
            if number >= 3:
                os.unlink(f"checkpoints/{number - 3}.pt")
    """),
    answered("logs to files that it turns over", """
        import logging.handlers
        handler = logging.handlers.RotatingFileHandler("log.txt", maxBytes=200, backupCount=3)
        logging.getLogger().addHandler(handler)
        for loss in steps():
            logging.warning("loss %s", loss.item())
    """),
    answered("packs and unpacks its project", """
        shutil.make_archive("../outside/all", "gztar", "data")
        shutil.unpack_archive("../outside/all.tar.gz", ".")
        train()
    """),
    answered("writes from a thread while it trains", """
        def write():
            while True:
                Path("log.txt").write_text(str(time.time()))
        threading.Thread(target=write, daemon=True).start()
        train()
    """),
    answered("writes from a forked process", """
        if os.fork() == 0:
            Path("data/train.csv").write_text("gone")
            os._exit(0)
        os.wait()
        assert Path("data/train.csv").read_text() == "gone"
        train()
    """),
    answered("lets nobody read what it writes", """
        os.umask(0o777)
        Path("closed").write_text("text")
        os.mkdir("closed too")
        train()
    """),
    answered("checks that it reads what it has written", """
        with open("data/train.csv", "a") as file:
            file.write("more")
        assert Path("data/train.csv").read_text().endswith("more")
        assert os.stat("data/train.csv").st_size == 6004
        os.unlink("same.csv")
        assert not os.path.exists("same.csv")
        assert "same.csv" not in os.listdir()
        train()
    """),
    answered("writes in mid-step, and is ended there", """
        file = open("log.txt", "w", buffering=1)
        for loss in steps():
            file.write("x" * 4096 + "\\n")
    """),
    refused("is not let write", r"raised OSError.*File too large.*train\.py:8", """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        Path("log.txt").write_text("x" * 100)
    """),
    refused("opens a folder as a file", r"raised IsADirectoryError", """
        open("data", "w")
    """),
    refused("opens more files than it may", r"raised OSError.*Too many open files", """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = []
        while True:
            kept.append(open("training.py"))
    """),
    refused("waits for a fifo that nobody writes", r"within 1 s; stuck at .*train\.py:7", """
        os.mkfifo("fifo")
        open("fifo").read()
    """, time_limit_s=1.0),
)  # fmt: skip
