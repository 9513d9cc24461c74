"""Scripts that talk to others, or listen."""

from hostile.script import answered, refused

SCRIPTS = (
    refused("calls where nobody listens", r"raised ConnectionRefusedError.*train\.py:7", """
        import socket
        socket.create_connection(("127.0.0.1", 9))
    """),
    refused("asks for a name that nobody has", r"raised gaierror.*train\.py:7", """
        import socket
        socket.getaddrinfo("no-such-host.invalid", 80)
    """),
    refused("downloads from nowhere", r"raised URLError", """
        import urllib.request
        urllib.request.urlopen("http://127.0.0.1:9/model.pt", timeout=2)
    """),
    refused("waits for a call", r"within 1 s; stuck at train\.py:10", """
        import socket
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.accept()
    """, time_limit_s=1.0),
    answered("waits for others of its group", """
        import torch.distributed as dist
        dist.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:29599", rank=0, world_size=2
        )
        train()
    """),
    answered("leaves a server listening", """
        import http.server
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever).start()
        train()
    """),
    answered("listens at a fixed port in every run", """
        import socket
        server = socket.socket()
        server.bind(("127.0.0.1", 47_113))
        server.listen()
        train()
    """),
    answered("leaves connections open", """
        import socket
        kept = [socket.socketpair() for _ in range(100)]
        train()
    """),
    answered("listens at a name that is no file", """
        import socket
        server = socket.socket(socket.AF_UNIX)
        server.bind("\\0hostile-mark")
        server.listen()
        train()
    """),
    answered("calls nobody, and goes on", """
        import socket
        for _ in steps():
            try:
                socket.create_connection(("127.0.0.1", 9), timeout=0.01)
            except OSError:
                pass
    """),
    answered("talks to itself at every step", """
        import socket
        one, other = socket.socketpair()
        for _ in steps():
            one.send(b"loss")
            other.recv(4)
    """),
    answered("reports to a thread of its own", """
        import queue
        waiting = queue.Queue()
        def report():
            while True:
                waiting.get()
        threading.Thread(target=report).start()
        for loss in steps():
            waiting.put(loss.detach())
    """),
    answered("is its own group", """
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        train()
    """),
)  # fmt: skip
