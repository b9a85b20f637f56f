/* Looking inside while a plan is built: what a subgraph has become after each pass, written down (DTORCH_DUMP) and checked (DTORCH_VERIFY, or a
 * build with -Dverify=true). Both cost a test of a flag where they are off. Controller thread only. */
#ifndef DT_PASSES_LOOK_H
#define DT_PASSES_LOOK_H

#include <stdio.h>

#include "passes/build.h"

/* After pass `name`: lower, bucket, fuse, reuse, many (operands are storages), plan (operands are slots, waits are set). E_INTERNAL: broken. */
dt_status dt_look(const dt_build *b, const char *name) DT_WUR;

/* dump.c */
void dt_dump_begin(const dt_graph *g); /* a subgraph is about to be planned */
void dt_dump_pass(const dt_build *b, const char *name);
void dt_dump_end(const dt_graph *g, dt_status s); /* it is, or could not be */
/* dump_page.c: one page a subgraph; text: what dump.c wrote */
void dt_dump_dot(const dt_build *b, FILE *f);
void dt_dump_page(const dt_build *b, const char *title, const char *text, FILE *f);
/* how both name things */
const char *dt_step_name(const dt_step *s);
void dt_dump_operand(const dt_prog *p, const dt_instr *in, int k, bool slots, dt_str *s);
void dt_dump_line(const dt_build *b, const dt_step *s, dt_str *out); /* "model.py:12" */
int64_t dt_dump_arena(const dt_prog *p);

/* verify.c */
dt_status dt_verify(const dt_build *b, const char *name) DT_WUR;

#endif
