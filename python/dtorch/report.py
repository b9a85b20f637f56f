"""A trace as one self-contained page:  python -m dtorch.report trace.json [-o report.html]

The page holds a timeline (drag to move, wheel to zoom, hover for the operator and its line), device memory over time, and tables by operator and
by line. It loads nothing from anywhere.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import sys
from collections import defaultdict

__all__ = ["main", "render"]

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>__TITLE__</title><style>
body{font:14px system-ui,sans-serif;margin:24px;color:#222;background:#fff}h1{font-size:20px}h2{font-size:16px;margin-top:28px}
table{border-collapse:collapse}td,th{padding:3px 10px;text-align:right;border-bottom:1px solid #e4e4e4}td:first-child,th:first-child{text-align:left;
font-family:ui-monospace,monospace;max-width:640px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
canvas{width:100%;border:1px solid #ddd;cursor:grab}#tip{position:fixed;display:none;background:#222;color:#fff;padding:5px 9px;border-radius:4px;
font-size:12px;pointer-events:none;max-width:520px}.bar{background:#7aa6d9;height:9px;display:inline-block}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}td,th{border-color:#333}canvas{border-color:#444}}
</style><h1>__TITLE__</h1><p>__FACTS__</p><h2>Timeline</h2><canvas id="c" height="__HEIGHT__"></canvas><div id="tip"></div>
<h2>Operators</h2>__OPS__<h2>Lines</h2>__LINES__<h2>Threads</h2>__LANES__<script>
const D=__DATA__,R=22,M=60,c=document.getElementById("c"),g=c.getContext("2d"),tip=document.getElementById("tip");let x0=0,x1=D.end||1,drag=null;
const hue=s=>{let h=0;for(const k of s)h=(h*31+k.charCodeAt(0))>>>0;return h%360};
function draw(){const w=c.width=c.clientWidth*devicePixelRatio,r=devicePixelRatio;c.height=__HEIGHT__*r;g.scale(r,r);const W=w/r,L=110,S=(W-L)/(x1-x0);
g.font="11px system-ui";D.lanes.forEach((n,i)=>{g.fillStyle="#888";g.fillText(n,4,i*R+15);});
for(const e of D.events){const a=L+(e[1]-x0)*S,b=L+(e[1]+e[2]-x0)*S;if(b<L||a>W)continue;const A=Math.max(a,L),
q=Math.max(b-A,.6);
g.fillStyle=`hsl(${hue(D.names[e[3]])} 55% 60%)`;g.fillRect(A,e[0]*R+2,q,R-4);if(q>46){g.fillStyle="#111";g.save();g.beginPath();
g.rect(A,e[0]*R,q-2,R);g.clip();g.fillText(D.names[e[3]],A+3,e[0]*R+15);g.restore();}}
let y=D.lanes.length*R+8;for(const m of D.memory){const top=Math.max(...m.points.map(p=>p[1]),1);g.fillStyle="#888";g.fillText(m.name,4,y+14);
g.fillText((top/1048576).toFixed(1)+" MiB",4,y+28);g.beginPath();let last=y+M-6;m.points.forEach((p,i)=>{const X=L+(p[0]-x0)*S,Y=y+(M-6)*(1-p[1]/top)+2;
i?(g.lineTo(X,last),g.lineTo(X,Y)):g.moveTo(X,Y);last=Y});g.strokeStyle="#4a86c5";g.stroke();y+=M;}}
const at=v=>x0+(v.offsetX-110)/(c.clientWidth-110)*(x1-x0);
c.onwheel=v=>{v.preventDefault();const t=at(v),k=v.deltaY>0?1.25:.8;x0=t-(t-x0)*k;x1=t+(x1-t)*k;draw()};
c.onmousedown=v=>drag=at(v);onmouseup=()=>drag=null;
c.onmousemove=v=>{if(drag!==null){const d=drag-at(v);x0+=d;x1+=d;draw();return}const t=at(v),l=Math.floor(v.offsetY/R);
const e=D.events.find(e=>e[0]===l&&e[1]<=t&&t<=e[1]+e[2]);tip.style.display=e?"block":"none";if(e){tip.textContent=
`${D.names[e[3]]}  ${e[2].toFixed(1)} µs  ${D.lines[e[4]]||""}`;tip.style.left=v.clientX+14+"px";tip.style.top=v.clientY+14+"px"}};
onresize=draw;draw();</script></html>
"""


def _rows(events, key):
    table = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for e in events:
        r = table[key(e)]
        r[0] += 1
        r[1] += e["dur"]
        r[2] = max(r[2], e["dur"])
        r[3] += e.get("args", {}).get("bytes", 0)
    return sorted(table.items(), key=lambda kv: -kv[1][1])


def _table(rows, limit=60):
    whole = sum(r[1] for _, r in rows) or 1.0
    body = "".join(
        f"<tr><td title='{html.escape(str(k), quote=True)}'>{html.escape(str(k))}</td><td>{n}</td><td>{t / 1e3:.3f}</td><td>{100 * t / whole:.1f} %"
        f"</td><td><span class=bar style='width:{120 * t / whole:.0f}px'></span></td><td>{t / n:.1f}</td><td>{top:.1f}</td><td>{b / 2**20:.1f}</td></tr>"
        for k, (n, t, top, b) in rows[:limit]
    )
    more = f"<p>… and {len(rows) - limit} more</p>" if len(rows) > limit else ""
    return f"<table><tr><th></th><th>count</th><th>ms</th><th>share</th><th></th><th>mean µs</th><th>longest µs</th><th>MiB</th></tr>{body}</table>{more}"


def render(trace, title="dtorch trace"):
    """The page's text for a trace: the JSON that profile.export_chrome_trace writes, parsed. ValueError if it is something else."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("report: the trace must be an object with a list 'traceEvents', as profile.export_chrome_trace writes it")
    names, order, events, counters = {}, {}, [], defaultdict(list)
    for e in trace["traceEvents"]:
        if e.get("ph") == "M" and e["name"] == "thread_name":
            names[e["tid"]] = e["args"]["name"]
        elif e.get("ph") == "M" and e["name"] == "thread_sort_index":
            order[e["tid"]] = e["args"]["sort_index"]
        elif e.get("ph") == "X":
            events.append(e)
        elif e.get("ph") == "C":
            counters[e["name"]].append([e["ts"], e["args"].get("allocated", 0)])
    tids = sorted(names, key=lambda t: (order.get(t, 0), t))
    row = {t: i for i, t in enumerate(tids)}
    texts, lines = {}, {"": 0}
    packed = [
        [
            row[e["tid"]],
            e["ts"],
            e["dur"],
            texts.setdefault(e["name"], len(texts)),
            lines.setdefault(e.get("args", {}).get("line", ""), len(lines)),
        ]
        for e in events
        if e["tid"] in row
    ]
    end = max((e["ts"] + e["dur"] for e in events), default=1.0)
    device = [e for e in events if e.get("cat") in ("kernel", "communication", "fetch")]
    memory = [{"name": n, "points": p} for n, p in sorted(counters.items())]
    data = {"lanes": [names[t] for t in tids], "events": packed, "names": list(texts), "lines": list(lines), "memory": memory, "end": end}
    facts = (
        f"{end / 1e3:.3f} ms, {len(events)} events, {len(tids)} threads; devices busy {sum(e['dur'] for e in device) / 1e3:.3f} ms in all"
    )
    fill = {
        "TITLE": html.escape(title), "FACTS": facts, "HEIGHT": str(len(tids) * 22 + len(memory) * 60 + 12),
        "OPS": _table(_rows(device, lambda e: e["name"])),
        "LINES": _table(_rows(device, lambda e: e.get("args", {}).get("line", "?"))),
        "LANES": _table(_rows(events, lambda e: names.get(e["tid"], "?"))),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }  # fmt: skip
    page = _PAGE
    for key, value in fill.items():
        page = page.replace(f"__{key}__", value)
    return page


def main(argv=None):
    """The command; returns its exit status."""
    p = argparse.ArgumentParser(prog="python -m dtorch.report", description="A trace as one self-contained HTML page.")
    p.add_argument("trace", help="JSON written by profile.export_chrome_trace")
    p.add_argument("-o", "--output", help="the page; by default the trace's name with .html")
    args = p.parse_args(argv)
    out = args.output or os.path.splitext(args.trace)[0] + ".html"
    try:
        with open(args.trace, encoding="utf-8") as f:
            text = render(json.load(f), os.path.basename(args.trace))
    except (OSError, ValueError, KeyError, TypeError) as e:
        print(f"report: {args.trace}: {e}", file=sys.stderr)
        return 1
    with open(out, "w", encoding="utf-8") as f:
        f.write(text)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
