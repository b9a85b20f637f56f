"""The whole suite with each pass off and with the stream cut at random: every test must pass as it does plainly, and read the same bits.

    python tests/every_pass.py [--modes fuse,cse,…] [-n 2] [--seeds 3] [-- what pytest takes: tests/py -k linear]

A mode is the name of a pass (left out by DTORCH_OFF), `all` (every pass out, a cut after every call on average) or `flush:N` (DTORCH_FLUSH=N). For each
test conftest.py hashes all values that it reads, in order (DTORCH_TEST_VALUES); sets of strings have one order in all runs. The plain suite runs
twice: tests whose own two hashes differ (they read clocks, or how much memory is in use) have no bits to compare, and it is said how many they are. Tests
that count plans, times of simulated devices or bytes bear the marker `every_pass` and are left out: they say why. Ends with 1 if anything differs.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
PASSES = ("dead", "cse", "fuse", "reuse", "overlap", "cache", "order", "bucket", "many", "replay")
VARIABLES = ("DTORCH_OFF", "DTORCH_FLUSH", "DTORCH_TEST_VALUES")


def environment(mode):
    """What a mode sets; '' is the plain suite."""
    if mode == "all":
        return {"DTORCH_OFF": ",".join(PASSES), "DTORCH_FLUSH": "1"}
    if mode.startswith("flush:"):
        return {"DTORCH_FLUSH": mode.removeprefix("flush:")}
    return {"DTORCH_OFF": mode} if mode else {}


def run(mode, processes, what):
    """{test: (outcome, hash of what it read)} of one run of the suite."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | environment(mode) | {"DTORCH_TEST_VALUES": folder, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "pytest", "-m", "not every_pass", "-n", str(processes), *what]
        out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        found = {}
        for file in pathlib.Path(folder).iterdir():
            for line in file.read_text().splitlines():
                test, outcome, values = json.loads(line)
                found[test] = (outcome, values)
    last = out.stdout.rstrip().splitlines()[-1:] or ["nothing was said"]
    print(f"{mode or 'plain':<12} {last[0].strip('= ')}", flush=True)
    if not found:
        sys.exit(out.stdout[-3000:] + out.stderr[-3000:])
    return found


def differences(mode, found, plain, steady):
    """Prints what a mode changed; how many tests that is."""
    wrong = [t for t, (outcome, _) in plain.items() if found.get(t, ("missing", ""))[0] != outcome]
    bits = [t for t in steady if t in found and found[t][0] == plain[t][0] == "passed" and found[t][1] != plain[t][1]]
    for test in wrong:
        print(f"  {mode}: {test}: {plain[test][0]} plainly, {found.get(test, ('missing', ''))[0]} here")
    for test in bits:
        print(f"  {mode}: {test}: other values")
    return len(wrong) + len(bits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", help="comma-separated; by default every pass, all, and --seeds random cuts")
    parser.add_argument("--seeds", type=int, default=3, help="how many random numbers of calls between cuts to try")
    parser.add_argument("-n", type=int, default=2, help="processes")
    parser.add_argument("what", nargs="*", help="what pytest takes")
    args = parser.parse_args()
    cuts = [f"flush:{random.choice((2, 3, 5, 8, 13, 30, 100))}" for _ in range(args.seeds)]
    modes = args.modes.split(",") if args.modes else [*PASSES, "all", *dict.fromkeys(cuts)]
    plain, again = run("", args.n, args.what), run("", args.n, args.what)
    steady = [t for t, (outcome, values) in plain.items() if outcome == "passed" and again.get(t) == (outcome, values)]
    print(f"{len(plain)} tests, {len(steady)} of them read the same bits twice; outcomes: {dict(collections.Counter(o for o, _ in plain.values()))}")
    wrong = sum(differences(mode, run(mode, args.n, args.what), plain, steady) for mode in modes)
    print(f"{len(modes)} modes: {wrong} tests differ")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
