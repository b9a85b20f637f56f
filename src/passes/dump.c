/* DTORCH_DUMP: each subgraph that is planned, as text. See look.h; pages and DOT are dump_page.c's.
 *
 * The text collects in memory while the passes run, since a page holds it as well, and goes to files when the plan is made. Many devices mostly
 * do the same: the first few programs are shown. */
#include <stdlib.h>
#include <string.h>

#include "passes/look.h"
#include "passes/options.h"
#include "plan/fused.h"

enum { PROGRAMS_SHOWN = 4 };

static FILE *text; /* NULL: nothing is being dumped */
static char *buffer, *dot, *page;
static size_t length, dot_length, page_length;
static size_t last_from, last_to; /* where the steps of the pass before stand in the text */
static int number;

/* ---- names ---------------------------------------------------------------------------------------------------------------------------------- */
const char *dt_step_name(const dt_step *s) {
    if (s->in.kind == DT_I_COLL) return s->in.coll->kind;
    return s->in.fused ? s->in.fused->name : dt_op_name(s->in.ctx.op);
}

static void add_site(uint32_t site, dt_str *out) {
    const char *file, *func;
    int line;
    if (!dt_site_get(site, &file, &line, &func)) return;
    const char *slash = strrchr(file, '/');
    dt_str_add(out, "%s:%d", slash ? slash + 1 : file, line);
}

void dt_dump_line(const dt_build *b, const dt_step *s, dt_str *out) { add_site(b->g->node[s->in.node].site, out); }

static const dt_storage *storage_of_slot(const dt_prog *p, int slot) {
    for (int i = 0; i < p->n_st; i++)
        if (p->st[i].root == i && p->st[i].slot == slot) return &p->st[i];
    return NULL;
}

static void add_storage(const dt_prog *p, int st, dt_str *s) {
    const dt_storage *x = &p->st[st];
    dt_str_add(s, "s%d", st);
    if (x->root != st) dt_str_add(s, "(in s%d)", x->root);
    if (x->kind == DT_ST_EXT) dt_str_add(s, "=in%u%s", x->ext, x->written ? "!" : x->donate ? "?" : "");
}

static void add_slot(const dt_prog *p, int slot, dt_str *s) {
    const dt_storage *x = storage_of_slot(p, slot);
    if (!x)
        dt_str_add(s, "number");
    else if (x->kind == DT_ST_EXT)
        dt_str_add(s, "in%u%s", x->ext, x->written ? "!" : "");
    else if (x->kind == DT_ST_OUT)
        dt_str_add(s, "out%d", slot);
    else
        dt_str_add(s, "temp%d@%zu", slot, x->offset);
}

void dt_dump_operand(const dt_prog *p, const dt_instr *in, int k, bool slots, dt_str *s) {
    const dt_operand *o = &in->operand[k];
    const dt_view *v = &in->view[k];
    if (o->slot == -1) {
        dt_str_add(s, "-");
        return;
    }
    if (o->slot == -2)
        dt_str_add(s, "number");
    else if (slots)
        add_slot(p, o->slot, s);
    else
        add_storage(p, o->slot, s);
    if (o->offset) dt_str_add(s, "+%lld", (long long)o->offset);
    dt_str_add(s, " %s", dt_dtype_name(v->dtype));
    dt_shape_print(v->ndim, v->shape, s);
    if (v->ndim && !dt_view_contiguous(v)) {
        dt_str_add(s, " strides ");
        dt_shape_print(v->ndim, v->stride, s);
    }
}

int64_t dt_dump_arena(const dt_prog *p) {
    size_t top = 0;
    for (int i = 0; i < p->n_st; i++) {
        const dt_storage *s = &p->st[i];
        if (s->root == i && s->kind == DT_ST_TEMP && s->first >= 0 && s->offset + s->bytes > top) top = s->offset + s->bytes;
    }
    return (int64_t)top;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------------------ */
static void print_group(const dt_fused *f) {
    for (int k = 0; k < f->n_ops; k++) {
        const dt_fused_op *o = &f->op[k];
        fprintf(text, "            v%d = %s(", f->n_in + k, o->op ? dt_op_name(o->op) : "spread");
        for (int i = 0; i < o->n_in; i++) fprintf(text, "%sv%d", i ? ", " : "", o->in[i]);
        fprintf(text, ") %s%s", dt_dtype_name(o->dtype), o->rows ? ", one a row" : "");
        if (o->out >= 0) fprintf(text, ", output %d", o->out);
        fputc('\n', text);
    }
}

static void print_step(const dt_build *b, const dt_prog *p, int i, bool slots) {
    const dt_step *s = &p->step[i];
    DT_STR(line, 4096);
    dt_str_add(&line, "  %4d  %-7s %-24s", i, s->in.queue ? "comm" : "compute", dt_step_name(s));
    for (int k = 0; k < s->in.n_in + s->in.n_out; k++) {
        dt_str_add(&line, "%s", k == s->in.n_in ? "  ->  " : k ? ", " : " ");
        dt_dump_operand(p, &s->in, k, slots, &line);
    }
    if (s->in.scratch.slot >= 0) {
        dt_str_add(&line, "  scratch ");
        (slots ? add_slot : add_storage)(p, s->in.scratch.slot, &line);
    }
    if (s->bucket >= 0) dt_str_add(&line, "  %s %d", s->in.kind == DT_I_COLL ? "bucket" : "together", s->bucket);
    if (s->in.wait) dt_str_add(&line, "  wait for %s %u", s->in.queue ? "compute" : "comm", s->in.wait);
    dt_str_add(&line, "   %%%u ", s->in.node);
    dt_dump_line(b, s, &line);
    fprintf(text, "%s\n", line.buf);
    if (s->in.fused) print_group(s->in.fused);
}

static void print_slots(const dt_prog *p) {
    fprintf(text, "  arena %lld bytes\n", (long long)dt_dump_arena(p));
    for (int i = 0; i < p->n_st; i++) {
        const dt_storage *s = &p->st[i];
        if (s->root != i || s->slot < 0) continue;
        DT_STR(name, 64);
        add_slot(p, s->slot, &name);
        fprintf(text, "    %-18s %10zu bytes  steps %d to %d%s\n", name.buf, s->bytes, s->first, s->last,
                !s->written            ? ""
                : s->kind == DT_ST_EXT ? "  donated: overwritten"
                                       : "  taken over in place");
    }
}

static void print_merged(const dt_build *b) {
    for (int i = 0; i < b->n_live; i++)
        for (int j = 0; j < i; j++)
            if (b->out[i] && b->out[i] == b->out[j]) {
                fprintf(text, "  %%%d is %%%d\n", i, j);
                break;
            }
}

void dt_dump_pass(const dt_build *b, const char *name) {
    if (!text) return;
    bool slots = !strcmp(name, "plan");
    if (!strcmp(name, "lower")) last_to = 0;
    fprintf(text, slots ? "\n== the plan ==\n" : "\n== after %s ==\n", name);
    if (!strcmp(name, "lower")) print_merged(b);
    size_t from = (fflush(text), length);
    for (int q = 0; q < b->n_prog && q < PROGRAMS_SHOWN; q++) {
        const dt_prog *p = &b->prog[q];
        fprintf(text, "program of %s:%u\n", dt_device_type_name(dt_device_kind(p->device)), dt_device_index(p->device));
        if (slots) print_slots(p);
        for (int i = 0; i < p->n_step; i++) print_step(b, p, i, slots);
    }
    if (b->n_prog > PROGRAMS_SHOWN) fprintf(text, "and %d programs more\n", b->n_prog - PROGRAMS_SHOWN);
    fflush(text);
    if (!slots && last_to && last_to - last_from == length - from && !memcmp(buffer + last_from, buffer + from, length - from)) {
        fseek(text, (long)from, SEEK_SET);
        fprintf(text, "  as before\n");
        return;
    }
    last_from = from;
    last_to = length;
    if (!slots) return;
    const dt_options *o = dt_options_get();
    FILE *f;
    if (o->dump_dot && (f = open_memstream(&dot, &dot_length))) {
        dt_dump_dot(b, f);
        fclose(f);
    }
    if (o->dump_html && (f = open_memstream(&page, &page_length))) {
        char title[64];
        snprintf(title, sizeof title, "subgraph %d", number);
        fflush(text);
        dt_dump_page(b, title, buffer, f);
        fclose(f);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------------------------------------- */
void dt_dump_begin(const dt_graph *g) {
    if (!dt_options_get()->dump || !(text = open_memstream(&buffer, &length))) return;
    fprintf(text, "subgraph %d: %d calls\n\n== as recorded; dead calls are marked ==\n", number, g->n);
    for (int i = 0; i < g->n; i++) {
        size_t cap = 4096 + 64 * (size_t)(g->node[i].call->n_in + g->node[i].call->n_out);
        dt_str s = {dt_malloc(cap), cap, 0};
        if (!s.buf) continue;
        s.buf[0] = 0;
        dt_graph_print_node(g, i, &s);
        add_site(g->node[i].site, &s);
        fprintf(text, "%s%s\n", s.buf, g->node[i].again ? "  (again)" : "");
        dt_free(s.buf);
    }
}

static void write_file(const char *suffix, const char *data, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/subgraph-%05d.%s", dt_options_get()->dump, number, suffix);
    FILE *f = data ? fopen(path, "w") : NULL;
    if (!f) return;
    fwrite(data, 1, n, f);
    fclose(f);
}

void dt_dump_end(const dt_graph *g, dt_status s) {
    (void)g;
    if (!text) return;
    if (s) fprintf(text, "\nnot planned: %s\n", dt_error_message());
    fclose(text);
    text = NULL;
    if (dt_options_get()->dump_text) write_file("txt", buffer, length);
    write_file("dot", dot, dot_length);
    write_file("html", page, page_length);
    free(buffer); /* open_memstream's, so plain free */
    free(dot);
    free(page);
    buffer = dot = page = NULL;
    number++;
}
