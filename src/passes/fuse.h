/* What fuse.c (which steps go together) and fuse_make.c (the instruction they become) share. */
#ifndef DT_PASSES_FUSE_H
#define DT_PASSES_FUSE_H

#include "passes/build.h"
#include "plan/backend.h"
#include "plan/fused.h"

typedef struct dt_fuse_group {
    int n, last;
    bool open;
    int into;          /* merged into that group; -1: none */
    int64_t seg;       /* rows of a segment of sums over columns, 0: no member is one */
    int64_t size, row; /* elements of a full tensor; of a row, 0: no member works on rows */
    int member[DT_FUSED_MEMBERS];
} dt_fuse_group;

typedef struct dt_fuse {
    dt_build *b;
    dt_prog *p;
    const dt_backend *backend;
    int *maker;    /* (n_st,) step that writes a storage, -1: an input of the plan */
    int *group_of; /* (n_step,) -1: none */
    bool *rows;    /* (n_step,) of a member: its result has an element per row */
    bool *sums;    /* (n_step,) of a member: it sums over columns, and no other member may read it */
    bool *escapes; /* (n_st,) */
    bool *outside; /* (n_st,) read by a step that is not in its maker's group */
    dt_fuse_group *g;
    int n_groups;
} dt_fuse;

/* An input's view with the shape that its reader walks: broadcast dimensions get stride 0. A number stays a number. */
void dt_fuse_expand(const dt_view *v, const dt_view *o, dt_view *out);
bool dt_fuse_same(const dt_view *x, dt_operand a, const dt_view *y, dt_operand b);
static inline bool dt_fuse_is_member(const int *member, int n, int step) {
    for (int i = 0; i < n; i++)
        if (member[i] == step) return true;
    return false;
}
static inline bool dt_fuse_half(dt_dtype t) { return dt_pw_tile_dtype(t) != t; }
/* dt_fused_kind of a step that reduces rows just as the interpreter does; DT_FUSED_CODE: it does not. */
int dt_fuse_reduction(const dt_fuse *f, const dt_step *s, int64_t *row);
/* Is the step a dropout whose part here lies in one run of the global tensor? *base: where it begins. */
bool dt_fuse_dropout(const dt_fuse *f, const dt_step *s, int64_t *base);
/* How a step reads by index if a group may do it (else DT_LOOKUP_NONE), and what: table and index as plan/fused.h describes them. */
typedef struct dt_fuse_read {
    int table, index; /* operands of the step */
    dt_view view[2];  /* of table and index */
    int dim;
    int64_t lo, limit;
} dt_fuse_read;
dt_lookup dt_fuse_lookup(const dt_fuse *f, const dt_step *s, dt_fuse_read *r);
/* Rows of a segment if the step sums columns as the interpreter does, else 0; *row: elements of a row. */
int64_t dt_fuse_columns(const dt_fuse *f, const dt_step *s, int64_t *row);
/* fuse_make.c: *made false: the group would not fit into an instruction, its steps stay as they are. */
dt_status dt_fuse_make(const dt_fuse *f, const dt_fuse_group *g, dt_step *out, bool *made) DT_WUR;

#endif
