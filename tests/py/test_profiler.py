"""The profiler: what it sees, its schedule, its files."""

import json
import os
import subprocess
import sys

import dtorch
import pytest
from dtorch import distribute_tensor, nn
from dtorch.distributed import Shard, init_device_mesh
from dtorch.profiler import ProfilerAction, profile, record_function, schedule, trace_handler
from dtorch.report import main, render


def work():
    x = dtorch.ones(64, 64)
    return (x @ x).relu() + 1


def test_events_name_operators_lines_and_lanes():
    with profile() as p:
        with record_function("mine"):
            y = work()
    assert y[0, 0].item() == 65
    kernels = [e for e in p.events() if e["kind"] == "kernel"]
    product = [e for e in kernels if e["name"] == "matmul"]
    assert len(product) == 1 and product[0]["lane"] == "cpu:0"
    assert os.path.basename(product[0]["file"]) == "test_profiler.py" and product[0]["function"] == "work"
    assert product[0]["bytes"] == 3 * 64 * 64 * 4
    assert 0 < product[0]["end"] - product[0]["begin"] < 10**9
    assert any("relu" in e["name"] for e in kernels)
    calls = [e["name"] for e in p.events() if e["kind"] == "call"]
    assert "matmul" in calls
    assert {e["lane"] for e in p.events()} >= {"client", "controller", "cpu:0"}


def test_communication_is_seen_per_device():
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(dtorch.ones(8, 4), mesh, [Shard(0)])
    dtorch.synchronize()
    with profile() as p:
        x.sum().item()
    lanes = {e["lane"].split()[0] for e in p.events() if e["kind"] == "communication"}
    assert lanes == {"cpu:0", "cpu:1"}


def test_nothing_is_collected_outside_and_each_profile_starts_empty():
    work()
    with profile() as first:
        work().sum().item()
    work()
    with profile() as second:
        dtorch.ones(3).neg().tolist()
    assert len(first.events()) > 0
    assert not any(e["name"] == "matmul" for e in second.events())
    assert any(e["name"] == "neg" for e in second.events())


def test_schedule():
    s = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=1)
    want = ["NONE", "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE", "NONE"]
    assert [s(i) for i in range(7)] == [ProfilerAction[w] for w in want]
    with pytest.raises(ValueError, match="active 0"):
        schedule(wait=0, warmup=0, active=0)


def test_only_scheduled_steps_are_kept(tmp_path):
    seen = []
    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=lambda p: seen.append(p.key_averages())) as p:
        for _ in range(10):
            nn.functional.softmax(dtorch.ones(4, 4), -1).tolist()
            p.step()
    assert len(seen) == 2
    for table in seen:
        assert [r.count for r in table if r.key == "_softmax"] == [2]
    handler = trace_handler(tmp_path / "t")
    with profile(on_trace_ready=handler):
        work().tolist()
    assert len(os.listdir(tmp_path / "t")) == 1


def test_one_at_a_time():
    with profile() as p:
        with pytest.raises(RuntimeError, match="another profile is active"):
            profile().start()
        p.step()
    with pytest.raises(RuntimeError, match="not active"):
        p.step()
    with profile():
        pass


def test_tables():
    with profile() as p:
        for _ in range(3):
            work().tolist()
    rows = {r.key: r for r in p.key_averages()}
    assert rows["matmul"].count == 3 and rows["matmul"].mean == pytest.approx(rows["matmul"].total / 3)
    lines = p.key_averages("line")
    assert any(r.key.startswith("test_profiler.py:") and r.total > 0 for r in lines)
    text = p.summary(sort_by="count", row_limit=1)
    assert "wall time" in text and "more" in text
    with pytest.raises(ValueError, match="sort_by 'size'"):
        p.key_averages().table("size")
    with pytest.raises(ValueError, match="group_by 'file'"):
        p.key_averages("file")


def test_trace_file_and_page(tmp_path):
    with profile() as p:
        with record_function("outer <b>"):
            work().tolist()
        p.step()
    path = tmp_path / "trace.json"
    p.export_chrome_trace(path)
    trace = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in trace if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    assert {e["name"] for e in spans} >= {"matmul", "outer <b>"}
    assert any(e["ph"] == "C" and e["name"] == "memory cpu:0" and e["args"]["allocated"] > 0 for e in trace)
    assert any(e["ph"] == "i" and e["name"] == "step 0" for e in trace)
    out = subprocess.run([sys.executable, "-m", "dtorch.report", str(path)], capture_output=True, text=True, check=True)
    page = (tmp_path / "trace.html").read_text()
    assert out.stdout.strip() == str(tmp_path / "trace.html")
    assert "matmul" in page and "test_profiler.py" in page and "http" not in page and "outer <b>" not in page
    (tmp_path / "bad.json").write_text("[1]")
    assert main([str(tmp_path / "bad.json")]) == 1
    with pytest.raises(ValueError, match="traceEvents"):
        render([])
