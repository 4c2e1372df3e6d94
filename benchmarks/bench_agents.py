"""Time from the start of `gpuscale mcp` to its first answer, and that of later ones, as a client of MCP sees it.

Run: python benchmarks/bench_agents.py [--runs 5] [--slack 1.0], where the extra `mcp` is installed.

The messages are written by hand, so that no client's own start counts. The least of all runs counts, as other programs
only add to it. Exits with 1 when the first answer takes more than `MAX_FIRST_S` times --slack.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

MAX_FIRST_S = 2.5
JOB = {"model": "llama3-70b", "gpus": 640}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
CALLS = (("plan", JOB), ("estimate", JOB | {"tp": 8, "pp": 4}), ("list", {"what": "hardware", "name": "h100"}))


def answered() -> list[float]:
    """Return the seconds that each call takes, the first one with the start of the server."""
    begun, taken = time.perf_counter(), []
    server = subprocess.Popen([sys.executable, "-m", "gpuscale", "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    ids = iter(range(1, 100))

    def ask(method: str, **params: object) -> dict[str, object]:
        message = {"jsonrpc": "2.0", "id": next(ids), "method": method, "params": params}
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())["result"]

    ask("initialize", **CLIENT)
    server.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    for name, arguments in CALLS:
        result = ask("tools/call", name=name, arguments=arguments)
        assert not result.get("isError"), result
        taken.append(time.perf_counter() - begun)
        time.sleep(1)  # as whoever reads an answer before asking again: the next process gets ready
        begun = time.perf_counter()
    server.stdin.close()
    server.wait()
    return taken


def main() -> int:
    """Print one line per call and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--slack", type=float, default=1.0)
    options = parser.parse_args()
    answered()  # warms the caches
    rounds = [answered() for _ in range(max(1, options.runs))]
    for number, (name, _) in enumerate(CALLS):
        each = sorted(one[number] for one in rounds)
        what = "start and first answer" if number == 0 else "later answer"
        print(f"{name:10} {what:24} {each[0]:6.2f} s, median {each[len(each) // 2]:.2f} s")
    return int(min(one[0] for one in rounds) > MAX_FIRST_S * options.slack)


if __name__ == "__main__":
    sys.exit(main())
