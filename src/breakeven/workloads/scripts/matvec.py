"""Time a matrix-vector product at several sizes on the CPU: one line of JSON for each.

With ``--device cuda`` a GPU is timed in the same way: torch's timer waits for it.
"""

import argparse
import json

import torch
from torch.utils.benchmark import Timer

SIZES = ((100, 3), (100, 100), (1_000, 1_000), (10_000, 10_000))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="where to multiply")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="threads to try")
    parser.add_argument("--seconds", type=float, default=0.6, help="time to take for each")
    args = parser.parse_args()

    for num_rows, num_columns in SIZES:
        matrix = torch.randn(num_rows, num_columns, device=args.device)
        vector = torch.randn(num_columns, device=args.device)
        for num_threads in args.threads:
            measured = Timer(
                "matrix @ vector",
                globals={"matrix": matrix, "vector": vector},
                num_threads=num_threads,
            ).blocked_autorange(min_run_time=args.seconds)
            times_s = measured.times
            line = {
                "num_rows": num_rows,
                "num_columns": num_columns,
                "num_threads": num_threads,
                "calls_ns": [time_s * 1e9 for time_s in times_s],
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
