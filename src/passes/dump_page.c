/* DTORCH_DUMP_FORMAT=dot,html: the plan of a subgraph as a graph for Graphviz, and as one page that needs nothing else. See look.h.
 *
 * The page has a table of instructions that a word typed above filters, and for each program a picture: time goes right, one column a step; above,
 * the two queues with arrows for waits; below, the arena: a box is a temporary, from the step that makes it to its last reader, at its offset. */
#include <string.h>

#include "passes/look.h"

enum { PROGRAMS_SHOWN = 4, COLUMN = 14, LANE = 22, ARENA_HEIGHT = 260 };

static void escape(const char *s, FILE *f) {
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '>')
            fputs("&gt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '"')
            fputs("&quot;", f);
        else
            fputc(*s, f);
    }
}

/* ---- DOT ------------------------------------------------------------------------------------------------------------------------------------- */
static int last_writer(const dt_prog *p, int at, int slot) {
    for (int i = at - 1; i >= 0; i--)
        for (int k = p->step[i].in.n_in; k < p->step[i].in.n_in + p->step[i].in.n_out; k++)
            if (p->step[i].in.operand[k].slot == slot) return i;
    return -1;
}

/* The n-th instruction of a queue, counted from 1, as a step. */
static int nth_of_queue(const dt_prog *p, int queue, uint32_t n) {
    for (int i = 0; i < p->n_step; i++)
        if (p->step[i].in.queue == queue && !--n) return i;
    return -1;
}

static bool is_input(const dt_prog *p, int slot) {
    for (int i = 0; slot >= 0 && i < p->n_st; i++)
        if (p->st[i].root == i && p->st[i].kind == DT_ST_EXT && p->st[i].slot == slot) return true;
    return false;
}

static void dot_edges(const dt_prog *p, int q, int i, FILE *f) {
    const dt_instr *in = &p->step[i].in;
    for (int k = 0; k < in->n_in; k++) {
        int slot = in->operand[k].slot, from = slot >= 0 ? last_writer(p, i, slot) : -1;
        DT_STR(name, 64);
        dt_shape_print(in->view[k].ndim, in->view[k].shape, &name);
        if (from >= 0)
            fprintf(f, "    p%d_%d -> p%d_%d [label=\"%s\"];\n", q, from, q, i, name.buf);
        else if (is_input(p, slot))
            fprintf(f, "    p%d_slot%d -> p%d_%d [label=\"%s\"];\n", q, slot, q, i, name.buf);
    }
    if (in->wait) fprintf(f, "    p%d_%d -> p%d_%d [style=dashed, label=\"wait\"];\n", q, nth_of_queue(p, !in->queue, in->wait), q, i);
}

void dt_dump_dot(const dt_build *b, FILE *f) {
    fprintf(f, "digraph plan {\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for (int q = 0; q < b->n_prog && q < PROGRAMS_SHOWN; q++) {
        const dt_prog *p = &b->prog[q];
        fprintf(f, "  subgraph cluster_%d {\n    label=\"%s:%u\";\n", q, dt_device_type_name(dt_device_kind(p->device)), dt_device_index(p->device));
        for (int i = 0; i < p->n_st; i++)
            if (p->st[i].root == i && p->st[i].kind == DT_ST_EXT && p->st[i].slot >= 0)
                fprintf(f, "    p%d_slot%d [shape=ellipse, label=\"in%u%s\"];\n", q, p->st[i].slot, p->st[i].ext, p->st[i].written ? " (donated)" : "");
        for (int i = 0; i < p->n_step; i++) {
            DT_STR(line, 128);
            dt_dump_line(b, &p->step[i], &line);
            fprintf(f, "    p%d_%d [label=\"%s\\n%s\"%s];\n", q, i, dt_step_name(&p->step[i]), line.buf,
                    p->step[i].in.kind == DT_I_COLL ? ", style=filled, fillcolor=\"#ffe0b0\"" : "");
        }
        for (int i = 0; i < p->n_step; i++) dot_edges(p, q, i, f);
        fprintf(f, "  }\n");
    }
    fprintf(f, "}\n");
}

/* ---- the page ---------------------------------------------------------------------------------------------------------------------------------- */
static const char *head =
    "<style>body{font:14px/1.4 sans-serif;margin:1.5em}table{border-collapse:collapse}td,th{padding:2px 8px;border-bottom:1px solid #ddd;"
    "text-align:left;vertical-align:top}td{font:12px monospace}input{font-size:15px;padding:4px;width:30em}svg{background:#fafafa;display:block;margin:1em 0}"
    "rect{stroke:#fff;stroke-width:.5}rect:hover{stroke:#000}pre{font-size:12px}.comm{background:#fff3e0}</style>";
static const char *script =
    "<script>const q=document.getElementById('q'),rows=[...document.querySelectorAll('tbody tr')];q.oninput=()=>{const w=q.value.toLowerCase().split(/\\s+/);"
    "for(const r of rows)r.hidden=!w.every(x=>r.textContent.toLowerCase().includes(x))}</script>";

static void operands(const dt_prog *p, const dt_instr *in, int from, int to, FILE *f) {
    fputs("<td>", f);
    for (int k = from; k < to; k++) {
        DT_STR(s, 512);
        dt_dump_operand(p, in, k, true, &s);
        if (k > from) fputs("<br>", f);
        escape(s.buf, f);
    }
    fputs("</td>", f);
}

static void table(const dt_build *b, const dt_prog *p, FILE *f) {
    for (int i = 0; i < p->n_step; i++) {
        const dt_step *s = &p->step[i];
        DT_STR(line, 256);
        dt_dump_line(b, s, &line);
        fprintf(f, "<tr%s><td>%s:%u</td><td>%d</td><td>%s</td><td>", s->in.queue ? " class=comm" : "", dt_device_type_name(dt_device_kind(p->device)),
                dt_device_index(p->device), i, s->in.queue ? "comm" : "compute");
        escape(dt_step_name(s), f);
        fputs("</td>", f);
        operands(p, &s->in, 0, s->in.n_in, f);
        operands(p, &s->in, s->in.n_in, s->in.n_in + s->in.n_out, f);
        fprintf(f, "<td>%u</td><td>", s->in.wait);
        escape(line.buf, f);
        fputs("</td></tr>\n", f);
    }
}

static void queues(const dt_prog *p, FILE *f) {
    for (int i = 0; i < p->n_step; i++) {
        const dt_step *s = &p->step[i];
        const char *colour = s->in.kind == DT_I_COLL ? "#f0a040" : s->in.fused ? "#5aa469" : "#4a7ab5";
        int from = s->in.wait ? nth_of_queue(p, !s->in.queue, s->in.wait) : -1;
        fprintf(f, "<rect x=%d y=%d width=%d height=%d fill=\"%s\"><title>%d ", i * COLUMN, s->in.queue * LANE, COLUMN, LANE - 4, colour, i);
        escape(dt_step_name(s), f);
        fputs("</title></rect>\n", f);
        if (from >= 0)
            fprintf(f, "<line x1=%d y1=%d x2=%d y2=%d stroke=\"#c00\"/>\n", from * COLUMN + COLUMN / 2, !s->in.queue * LANE + LANE / 2, i * COLUMN + 2,
                    s->in.queue * LANE + LANE / 2);
    }
}

static void arena(const dt_prog *p, int64_t bytes, FILE *f) {
    static const char *colours[] = {"#7aa6d8", "#9bc49f", "#e3c16f", "#d69a9a", "#b39ddb", "#80c7c1"};
    for (int i = 0, n = 0; bytes && i < p->n_st; i++) {
        const dt_storage *s = &p->st[i];
        if (s->root != i || s->kind != DT_ST_TEMP || s->first < 0 || !s->bytes) continue;
        double y = 2 * LANE + 8 + (double)s->offset / (double)bytes * ARENA_HEIGHT, h = (double)s->bytes / (double)bytes * ARENA_HEIGHT;
        fprintf(f, "<rect x=%d y=%.2f width=%d height=%.2f fill=\"%s\"><title>temp%d at %zu, %zu bytes, steps %d to %d</title></rect>\n", s->first * COLUMN, y,
                (s->last - s->first + 1) * COLUMN, h, colours[n++ % 6], s->slot, s->offset, s->bytes, s->first, s->last);
    }
}

void dt_dump_page(const dt_build *b, const char *title, const char *text, FILE *f) {
    fprintf(f, "<!doctype html>\n<html><head><meta charset=\"utf-8\"><title>%s</title>%s</head><body>\n<h1>%s</h1>\n<p>%d calls, %d programs.</p>\n", title,
            head, title, b->n_live, b->n_prog);
    for (int q = 0; q < b->n_prog && q < PROGRAMS_SHOWN; q++) {
        const dt_prog *p = &b->prog[q];
        int64_t bytes = dt_dump_arena(p);
        fprintf(f, "<h2>%s:%u</h2>\n<p>%d steps; arena %lld bytes. Time goes right: compute, communication (red lines: waits), then the arena.</p>\n",
                dt_device_type_name(dt_device_kind(p->device)), dt_device_index(p->device), p->n_step, (long long)bytes);
        fprintf(f, "<div style=\"overflow-x:auto\"><svg width=\"%d\" height=\"%d\">\n", p->n_step * COLUMN + COLUMN, 2 * LANE + 16 + ARENA_HEIGHT);
        queues(p, f);
        arena(p, bytes, f);
        fputs("</svg></div>\n", f);
    }
    fputs("<p><input id=\"q\" placeholder=\"words to look "
          "for\"></p>\n<table><thead><tr><th>device</th><th>step</th><th>queue</th><th>operation</th><th>reads</th>"
          "<th>writes</th><th>waits for</th><th>line</th></tr></thead><tbody>\n",
          f);
    for (int q = 0; q < b->n_prog && q < PROGRAMS_SHOWN; q++) table(b, &b->prog[q], f);
    fputs("</tbody></table>\n<details><summary>After each pass</summary><pre>", f);
    if (text) escape(text, f);
    fprintf(f, "</pre></details>\n%s</body></html>\n", script);
}
