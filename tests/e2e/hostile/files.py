"""Scripts that write: wherever they like, as much as they like, what few programs write."""

from hostile.ground import MARK
from hostile.script import answered, refused

SCRIPTS = (
    answered("writes beside itself", """
        Path("log.txt").write_text("new")
        os.makedirs("runs/1/2/3")
        train()
    """),
    answered("writes to the home of its user", """
        with open(os.path.expanduser("~/.bashrc"), "a") as file:
            file.write("echo hello")
        Path("~/.config/tracker").expanduser().mkdir(parents=True)
        train()
    """, in_sample=True),
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
    answered("writes to the system", f"""
        for path in ("/etc/hosts", "/etc/{MARK}", "/{MARK}", "/opt/{MARK}"):
            try:
                with open(path, "a") as file:
                    file.write("# {MARK}")
            except PermissionError as error:
                print(error)
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
    answered("makes a fifo", """
        os.mkfifo("fifo")
        train()
    """, in_sample=True),
    answered("makes a socket", """
        import socket
        server = socket.socket(socket.AF_UNIX)
        server.bind("socket")
        server.listen()
        train()
    """, needs_layer=True),
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
    """, in_sample=True),
    answered("makes files with odd names", """
        for name in (b"\\xff\\xfe", b"two\\nlines", b"-rf", b"\\x1b[31m", b"a" * 255, b" "):
            with open(name, "wb") as file:
                file.write(name)
        train()
    """),
    answered("changes its folder at every step", """
        for number, _ in enumerate(steps()):
            os.chdir("data" if number % 2 == 0 else "..")
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
    answered("logs to files that it turns over", """
        import logging.handlers
        handler = logging.handlers.RotatingFileHandler("log.txt", maxBytes=200, backupCount=3)
        logging.getLogger().addHandler(handler)
        for loss in steps():
            logging.warning("loss %s", loss.item())
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
    refused("is not let write", r"raised OSError.*File too large.*train\.py:8", """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        Path("log.txt").write_text("x" * 100)
    """, in_sample=True),
    refused("opens more files than it may", r"raised OSError.*Too many open files", """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        kept = []
        while True:
            kept.append(open("training.py"))
    """),
)  # fmt: skip
