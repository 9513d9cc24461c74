"""Scripts that write: wherever they like, as much as they like, what few programs write."""

from hostile.ground import MARK
from hostile.script import answered, refused

SCRIPTS = (
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
    answered("writes from a thread while it trains", """
        def write():
            while True:
                Path("log.txt").write_text(str(time.time()))
        threading.Thread(target=write, daemon=True).start()
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
    """),
    refused("waits for a fifo that nobody writes", r"within 1 s; stuck at .*train\.py:7", """
        os.mkfifo("fifo")
        open("fifo").read()
    """, time_limit_s=1.0),
)  # fmt: skip
